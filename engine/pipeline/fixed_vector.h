#ifndef FASTDECODE_ENGINE_PIPELINE_FIXED_VECTOR_H_
#define FASTDECODE_ENGINE_PIPELINE_FIXED_VECTOR_H_

#include <cstddef>
#include <memory>

#include "numa/check.h"

namespace fastdecode {

// A vector whose room is taken once, at construction: what the data path keeps lists in.
// Owns: its elements. Thread: one. Bounded: by `capacity`; more is a broken invariant.
template <class T>
class FixedVector {
 public:
  explicit FixedVector(size_t capacity) : capacity_(capacity), items_(std::make_unique<T[]>(capacity)) {}

  void Append(const T& item) {
    FD_CHECK(size_ < capacity_, "a fixed vector is full");
    items_[size_++] = item;
  }
  // Before `index`; keeps the order.
  void Insert(size_t index, const T& item) {
    FD_CHECK(size_ < capacity_, "a fixed vector is full");
    for (size_t i = size_++; i > index; --i) items_[i] = items_[i - 1];
    items_[index] = item;
  }
  // Keeps the order of the others.
  void Erase(size_t index) {
    FD_CHECK(index < size_, "index past the end");
    for (size_t i = index + 1; i < size_; ++i) items_[i - 1] = items_[i];
    --size_;
  }
  void EraseFront(size_t count) {
    FD_CHECK(count <= size_, "index past the end");
    if (count == 0) return;
    for (size_t i = count; i < size_; ++i) items_[i - count] = items_[i];
    size_ -= count;
  }
  void Clear() { size_ = 0; }

  T& operator[](size_t index) { return items_[index]; }
  const T& operator[](size_t index) const { return items_[index]; }
  T* begin() { return items_.get(); }
  T* end() { return items_.get() + size_; }
  const T* begin() const { return items_.get(); }
  const T* end() const { return items_.get() + size_; }
  size_t size() const { return size_; }
  size_t capacity() const { return capacity_; }
  bool empty() const { return size_ == 0; }
  bool full() const { return size_ == capacity_; }

 private:
  size_t capacity_;
  size_t size_ = 0;
  std::unique_ptr<T[]> items_;
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_PIPELINE_FIXED_VECTOR_H_
