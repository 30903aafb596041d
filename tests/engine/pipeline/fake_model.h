#ifndef FASTDECODE_TESTS_ENGINE_PIPELINE_FAKE_MODEL_H_
#define FASTDECODE_TESTS_ENGINE_PIPELINE_FAKE_MODEL_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/pipeline/sequence.h"
#include "engine/rpart/messages.h"

namespace fastdecode {

// A model whose every value is one hash, and that depends on what a transformer depends on: a token on all tokens
// before it, through every layer. FakeSPart and HomeModel compute it in parts, FakeOracle as a whole.

inline uint64_t Mix(uint64_t a, uint64_t b) {
  uint64_t x = a * 0x9e3779b97f4a7c15u ^ (b + 0x7f4a7c15f39cc060u + (a << 6) + (a >> 2));
  x ^= x >> 31;
  x *= 0xbf58476d1ce4e5b9u;
  x ^= x >> 29;
  return x;
}

enum class CellKind : uint32_t { kQ = 1, kK = 2, kV = 3, kO = 4 };

// What lies in one row's q, k, v or o: the value, whose it is, and a check over all of that, so that a row which is
// torn, overwritten or another's is noticed where it is read.
struct FakeCell {
  CellKind kind = CellKind::kQ;
  int32_t token = 0;
  uint32_t position = 0;
  uint32_t layer = 0;
  uint64_t value = 0;
  uint64_t check[5] = {};

  static FakeCell Make(CellKind kind, int32_t token, uint32_t position, uint32_t layer, uint64_t value);
  bool Sound() const;
};
static_assert(sizeof(FakeCell) == 64);

// One head of 16 floats, so that q, k, v and o of a row are one cell each.
RPartShape FakeShape(uint32_t layers, uint32_t micro_batches, uint32_t rows_max, uint32_t context_max,
                     KvType kv_type = KvType::kF32);

// Residual stream and attention, layer by layer.
inline uint64_t Embed(int32_t token, uint32_t position) { return Mix(static_cast<uint64_t>(token) + 1, position); }
inline uint64_t CellValue(CellKind kind, uint64_t residual, uint32_t layer) {
  return Mix(residual, static_cast<uint64_t>(kind) * 1000 + layer);
}
// The KV that a home makes up.
inline uint64_t FillValue(CellKind kind, uint32_t position, uint32_t layer) {
  return Mix(position + 77, static_cast<uint64_t>(kind) * 5000 + layer);
}
// All KV up to a position, from all KV up to the one before.
inline uint64_t AppendKv(uint64_t history, uint64_t k, uint64_t v) { return Mix(Mix(history, k), v); }
inline uint64_t Attend(uint64_t q, uint64_t history) { return Mix(q ^ 0x5555, history) | 1; }  // never 0
inline uint64_t NextResidual(uint64_t residual, uint64_t o) { return Mix(residual, o ^ 0xaaaa); }
// Not in `banned` (ascending).
int32_t TokenOf(uint64_t residual, uint64_t seed, int vocab, std::span<const int32_t> banned);
inline float LogitOf(uint64_t residual, int token) {
  return static_cast<float>(Mix(residual, static_cast<uint64_t>(token)) & 0xffff) / 4096;
}

// What one request must come to, whatever the schedule.
class FakeOracle {
 public:
  FakeOracle(int layers, int vocab) : vocab_(vocab), history_(static_cast<size_t>(layers)) {}

  // The final residual of the next position.
  uint64_t Push(int32_t token, bool filled);

  struct Result {
    std::vector<int32_t> generated;
    FinishReason reason = FinishReason::kLength;
    std::vector<uint64_t> prompt_residuals;
  };
  // Of a sequence that has its prompt and nothing else.
  static Result Run(const Sequence& sequence, int layers, int vocab);

 private:
  const int vocab_;
  uint32_t position_ = 0;
  std::vector<uint64_t> history_;  // [layer]
};

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_ENGINE_PIPELINE_FAKE_MODEL_H_
