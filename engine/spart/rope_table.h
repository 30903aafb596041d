#ifndef FASTDECODE_ENGINE_SPART_ROPE_TABLE_H_
#define FASTDECODE_ENGINE_SPART_ROPE_TABLE_H_

#include <cstdint>
#include <vector>

#include "engine/model/model_spec.h"

namespace fastdecode {

// The rotations of q, or of k, as transformers have them: frequencies and angles in f32, so that long positions agree.
// Pairs are (i, i + head_dim / 2) of a head in the order of ModelWeights; those that are not rotated have the cosine 1
// and the sine 0. Whatever else multiplies q or k by position is in both.
struct RopeTable {
  int64_t half = 0;            // head_dim / 2
  std::vector<float> cosines;  // [positions][half]
  std::vector<float> sines;
};

// The tables of a model, each once, and which of them its layers have.
struct RopeTables {
  static constexpr int kNone = -1;  // of a layer that is not rotated
  struct OfLayer {
    int q = kNone, k = kNone;  // index into tables
  };
  std::vector<RopeTable> tables;
  std::vector<OfLayer> layers;
};

// For positions below `positions`, which is the longest context that the engine has: with longrope it decides whether
// the factors are those of short contexts or of long ones, for all of them.
RopeTables BuildRopeTables(const ModelSpec& spec, int positions);

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_SPART_ROPE_TABLE_H_
