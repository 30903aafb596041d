#ifndef FASTDECODE_ENGINE_SPART_ROPE_TABLE_H_
#define FASTDECODE_ENGINE_SPART_ROPE_TABLE_H_

#include <cstdint>
#include <vector>

#include "engine/model/model_spec.h"

namespace fastdecode {

// The rotations of q and k, as Hugging Face's Llama has them: frequencies and angles in f32, so that long positions
// agree. Pairs are (i, i + head_dim / 2).
struct RopeTable {
  int64_t half = 0;            // head_dim / 2
  std::vector<float> cosines;  // [positions][half]
  std::vector<float> sines;
};

RopeTable BuildRopeTable(const ModelSpec& spec, int positions);

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_SPART_ROPE_TABLE_H_
