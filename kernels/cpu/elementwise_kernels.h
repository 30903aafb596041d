#ifndef FASTDECODE_KERNELS_CPU_ELEMENTWISE_KERNELS_H_
#define FASTDECODE_KERNELS_CPU_ELEMENTWISE_KERNELS_H_

#include "kernels/elementwise.h"

namespace fastdecode {

// The table of one ISA; the file of the same name defines it. Reached only through SelectElementwise.
ElementwiseKernels Avx2Elementwise(ElementType type);
ElementwiseKernels Avx512Elementwise(ElementType type);

}  // namespace fastdecode

#endif  // FASTDECODE_KERNELS_CPU_ELEMENTWISE_KERNELS_H_
