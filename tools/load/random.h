#ifndef FASTDECODE_TOOLS_LOAD_RANDOM_H_
#define FASTDECODE_TOOLS_LOAD_RANDOM_H_

#include <cstdint>

namespace fastdecode::load {

// Random numbers that any language can repeat: splitmix64, and what is drawn from it. Equal seeds give equal loads on
// every machine, which the standard library's distributions do not promise. Thread: one.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t Bits();
  double Uniform();            // [0, 1)
  double Exponential();        // mean 1
  double Normal();             // mean 0, deviation 1; takes two uniform numbers
  double Gamma(double shape);  // scale 1, so the mean is the shape
  // A whole number from first to last.
  int64_t Between(int64_t first, int64_t last);

 private:
  uint64_t state_;
};

}  // namespace fastdecode::load

#endif  // FASTDECODE_TOOLS_LOAD_RANDOM_H_
