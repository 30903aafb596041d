#ifndef FASTDECODE_ENGINE_SPART_CPU_TILES_H_
#define FASTDECODE_ENGINE_SPART_CPU_TILES_H_

namespace fastdecode {

inline constexpr int kTileRows = 128;   // rows whose gate and up a thread holds at a time
inline constexpr int kLogitRows = 64;   // rows whose logits are held at a time

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_SPART_CPU_TILES_H_
