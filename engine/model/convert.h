#ifndef FASTDECODE_ENGINE_MODEL_CONVERT_H_
#define FASTDECODE_ENGINE_MODEL_CONVERT_H_

#include <cstdint>

#include "engine/model/safetensors.h"
#include "kernels/float_types.h"

namespace fastdecode {

// IEEE binary16 of a file. Rounds to nearest even; too large becomes infinity, NaN stays NaN.
uint16_t ToF16(float value);

// out[0..count) = elements [first, first + count) of the tensor's flat row-major data as f32: exactly, but for those of
// f64. REQUIRES: the range lies inside the tensor.
void ConvertToF32(const TensorView& tensor, int64_t first, int64_t count, float* out);
// As that, rounded to the element type; fp16 cannot hold what is larger than 65504 and takes that instead. A type that
// the tensor has already is copied.
void ConvertTo(ElementType type, const TensorView& tensor, int64_t first, int64_t count, void* out);

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_MODEL_CONVERT_H_
