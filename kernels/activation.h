#ifndef FASTDECODE_KERNELS_ACTIVATION_H_
#define FASTDECODE_KERNELS_ACTIVATION_H_

namespace fastdecode {

// The function between an MLP's two products.
enum class Activation {
  kSilu,      // x / (1 + e^-x)
  kGelu,      // x (1 + erf(x / sqrt(2))) / 2
  kGeluTanh,  // x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x³))) / 2
  kRelu,      // max(x, 0)
  kRelu2,     // its square
};

}  // namespace fastdecode

#endif  // FASTDECODE_KERNELS_ACTIVATION_H_
