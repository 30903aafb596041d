#ifndef FASTDECODE_KERNELS_CUDA_LAUNCH_H_
#define FASTDECODE_KERNELS_CUDA_LAUNCH_H_

namespace fastdecode {

// How many threads a kernel is to run on: the same on a GPU and where it is emulated.
struct LaunchShape {
  unsigned blocks_x = 1, blocks_y = 1;
  unsigned threads = 1;       // of a block; a multiple of 32, or 1
  unsigned shared_bytes = 0;  // of a block
};

}  // namespace fastdecode

#endif  // FASTDECODE_KERNELS_CUDA_LAUNCH_H_
