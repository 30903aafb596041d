#ifndef FASTDECODE_ENGINE_MODEL_WEIGHT_VIEW_H_
#define FASTDECODE_ENGINE_MODEL_WEIGHT_VIEW_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/model/safetensors.h"
#include "kernels/float_types.h"

namespace fastdecode {

// A matrix [rows, columns] of a model, outputs by inputs, or a vector (one column), and where a checkpoint has it: a
// whole tensor, some of its rows, in another order, or its columns. Valid as long as the checkpoint. Copied freely.
struct WeightView {
  const TensorView* tensor = nullptr;
  int64_t rows = 0, columns = 0;
  int64_t first = 0;        // the tensor's row that the first head begins with
  bool transposed = false;  // the tensor's columns are meant where rows are spoken of
  // Rows of heads that lie apart, or in another order than ours: 0: they do not.
  int64_t head_rows = 0;
  int64_t head_stride = 0;
  std::vector<int> channels;  // [head_rows]: which row of its head is the first, the second, ...; empty: in order
  // The matrix is the tensor times this one, f32 [columns of the tensor, columns]; null: the tensor alone.
  std::shared_ptr<const std::vector<float>> factor;

  int64_t elements() const { return rows * columns; }
  // The tensor's row that has row `row`.
  int64_t StoredRow(int64_t row) const;
  // Whether the elements follow each other in the tensor as they do here.
  bool contiguous() const { return !transposed && head_rows == 0 && factor == nullptr; }
};

// All of a tensor. REQUIRES: it has one or two dimensions.
WeightView WholeTensor(const TensorView& tensor);

// out[0..count) = elements [first, first + count) of the view's row-major data as f32: exactly, but for those of a
// product. REQUIRES: the range lies inside it. Thread: any, several at once.
void ConvertToF32(const WeightView& view, int64_t first, int64_t count, float* out);
// Does the same, and rounds to the element type; fp16 cannot hold what is larger than 65504 and takes that instead.
void ConvertTo(ElementType type, const WeightView& view, int64_t first, int64_t count, void* out);
// The whole view.
std::vector<float> ReadF32(const WeightView& view);

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_MODEL_WEIGHT_VIEW_H_
