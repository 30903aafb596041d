#include "tests/engine/pipeline/fake_model.h"

#include <algorithm>

namespace fastdecode {

namespace {

uint64_t CheckOf(const FakeCell& cell, uint64_t index) {
  const uint64_t who = Mix(static_cast<uint64_t>(cell.kind) * 100 + cell.layer, static_cast<uint32_t>(cell.token));
  return Mix(Mix(who, cell.position), cell.value + index);
}

}  // namespace

FakeCell FakeCell::Make(CellKind kind, int32_t token, uint32_t position, uint32_t layer, uint64_t value) {
  FakeCell cell;
  cell.kind = kind;
  cell.token = token;
  cell.position = position;
  cell.layer = layer;
  cell.value = value;
  for (uint64_t i = 0; i < 5; ++i) cell.check[i] = CheckOf(cell, i);
  return cell;
}

bool FakeCell::Sound() const {
  for (uint64_t i = 0; i < 5; ++i) {
    if (check[i] != CheckOf(*this, i)) return false;
  }
  return true;
}

RPartShape FakeShape(uint32_t layers, uint32_t micro_batches, uint32_t rows_max, uint32_t context_max, KvType kv_type) {
  RPartShape shape;
  shape.layers = layers;
  shape.kv_heads = 1;
  shape.group = 1;
  shape.head_dim = 16;
  shape.element_type = static_cast<uint32_t>(ElementType::kF32);
  shape.kv_type = static_cast<uint32_t>(kv_type);
  shape.scale = 0.25f;
  shape.micro_batches = micro_batches;
  shape.max_rows = rows_max;
  shape.max_context = context_max;
  return shape;
}

int32_t TokenOf(uint64_t residual, uint64_t seed, int vocab, std::span<const int32_t> banned) {
  if (seed != 0) residual = Mix(residual, seed);
  int32_t token = static_cast<int32_t>(residual % static_cast<uint64_t>(vocab));
  while (std::binary_search(banned.begin(), banned.end(), token)) token = (token + 1) % vocab;
  return token;
}

uint64_t FakeOracle::Push(int32_t token, bool filled) {
  const uint32_t position = position_++;
  uint64_t residual = Embed(token, position);
  for (uint32_t layer = 0; layer < history_.size(); ++layer) {
    uint64_t k = CellValue(CellKind::kK, residual, layer);
    uint64_t v = CellValue(CellKind::kV, residual, layer);
    if (filled) {
      k = FillValue(CellKind::kK, position, layer);
      v = FillValue(CellKind::kV, position, layer);
    }
    history_[layer] = AppendKv(history_[layer], k, v);
    residual = NextResidual(residual, Attend(CellValue(CellKind::kQ, residual, layer), history_[layer]));
  }
  return residual;
}

FakeOracle::Result FakeOracle::Run(const Sequence& sequence, int layers, int vocab) {
  FakeOracle oracle(layers, vocab);
  Result result;
  for (uint32_t i = 0; i < sequence.prompt_tokens; ++i) {
    result.prompt_residuals.push_back(oracle.Push(sequence.log.tokens[i], i < sequence.fill_tokens));
  }
  if (sequence.length_max == sequence.prompt_tokens) return result;
  uint64_t residual = result.prompt_residuals.back();
  for (;;) {
    std::span<const int32_t> banned;
    if (result.generated.size() < sequence.sampling.min_tokens) banned = sequence.sampling.stop_tokens;
    const int32_t token = TokenOf(residual, sequence.sampling.params.seed, vocab, banned);
    if (std::binary_search(sequence.sampling.stop_tokens.begin(), sequence.sampling.stop_tokens.end(), token)) {
      result.reason = FinishReason::kStopToken;
      return result;
    }
    result.generated.push_back(token);
    if (sequence.prompt_tokens + result.generated.size() == sequence.length_max) return result;
    residual = oracle.Push(token, false);
  }
}

}  // namespace fastdecode
