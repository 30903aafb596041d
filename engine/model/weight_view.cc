#include "engine/model/weight_view.h"

#include <algorithm>

#include "engine/model/convert.h"
#include "numa/check.h"

namespace fastdecode {
namespace {

// The width of the tensor's rows in memory.
int64_t StoredWidth(const TensorView& tensor) { return tensor.shape.size() == 2 ? tensor.shape[1] : 1; }

// Columns [first, first + count) of one row of a product.
void MultiplyRow(const WeightView& view, int64_t row, int64_t first, int64_t count, float* out) {
  const int64_t inner = StoredWidth(*view.tensor);
  std::vector<float> stored(static_cast<size_t>(inner));
  ConvertToF32(*view.tensor, view.StoredRow(row) * inner, inner, stored.data());
  std::fill_n(out, count, 0.0f);
  for (int64_t j = 0; j < inner; ++j) {
    const float* const factor = view.factor->data() + j * view.columns + first;
    const float value = stored[static_cast<size_t>(j)];
    for (int64_t i = 0; i < count; ++i) out[i] += value * factor[i];
  }
}

// Columns [first, first + count) of one row.
void ReadRow(const WeightView& view, int64_t row, int64_t first, int64_t count, float* out) {
  if (view.factor != nullptr) return MultiplyRow(view, row, first, count, out);
  const int64_t width = StoredWidth(*view.tensor), stored = view.StoredRow(row);
  if (!view.transposed) return ConvertToF32(*view.tensor, stored * width + first, count, out);
  for (int64_t i = 0; i < count; ++i) ConvertToF32(*view.tensor, (first + i) * width + stored, 1, out + i);
}

}  // namespace

int64_t WeightView::StoredRow(int64_t row) const {
  if (head_rows == 0) return first + row;
  const int64_t channel = row % head_rows;
  return first + row / head_rows * head_stride +
         (channels.empty() ? channel : int64_t{channels[static_cast<size_t>(channel)]});
}

WeightView WholeTensor(const TensorView& tensor) {
  WeightView view;
  view.tensor = &tensor;
  view.rows = tensor.shape[0];
  view.columns = StoredWidth(tensor);
  return view;
}

void ConvertToF32(const WeightView& view, int64_t first, int64_t count, float* out) {
  FD_CHECK(first >= 0 && count >= 0 && first <= view.elements() - count, "the range lies inside the matrix");
  if (view.contiguous()) return ConvertToF32(*view.tensor, view.first * view.columns + first, count, out);
  while (count > 0) {
    const int64_t column = first % view.columns, some = std::min(count, view.columns - column);
    ReadRow(view, first / view.columns, column, some, out);
    first += some;
    count -= some;
    out += some;
  }
}

void ConvertTo(ElementType type, const WeightView& view, int64_t first, int64_t count, void* out) {
  FD_CHECK(first >= 0 && count >= 0 && first <= view.elements() - count, "the range lies inside the matrix");
  if (view.contiguous()) return ConvertTo(type, *view.tensor, view.first * view.columns + first, count, out);
  if (type == ElementType::kF32) return ConvertToF32(view, first, count, static_cast<float*>(out));
  constexpr int64_t kAtOnce = 1 << 14;
  std::vector<float> values(static_cast<size_t>(std::min(count, kAtOnce)));
  for (int64_t done = 0; done < count; done += kAtOnce) {
    const int64_t some = std::min(kAtOnce, count - done);
    ConvertToF32(view, first + done, some, values.data());
    if (type == ElementType::kBf16) {
      std::transform(values.data(), values.data() + some, static_cast<Bf16*>(out) + done, ToBf16);
    } else {
      std::transform(values.data(), values.data() + some, static_cast<Fp16*>(out) + done, ToFp16);
    }
  }
}

std::vector<float> ReadF32(const WeightView& view) {
  std::vector<float> values(static_cast<size_t>(view.elements()));
  ConvertToF32(view, 0, view.elements(), values.data());
  return values;
}

}  // namespace fastdecode
