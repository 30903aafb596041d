#ifndef FASTDECODE_ENGINE_MODEL_SAFETENSORS_H_
#define FASTDECODE_ENGINE_MODEL_SAFETENSORS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace fastdecode {

// The element types of tensors that we read, and any other one, which a tensor may have that no model needs.
enum class DType { kF32, kF16, kBf16, kF64, kOther };

// The bytes of one element of a type that can be read.
inline constexpr int64_t DTypeBytes(DType type) { return type == DType::kF64 ? 8 : type == DType::kF32 ? 4 : 2; }
// The name that safetensors has for it: "F32", "F16", "BF16", "F64".
const char* DTypeName(DType type);

// One tensor inside a mapped file, row-major. A copyable view: valid as long as the file's SafetensorsFile.
struct TensorView {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;       // empty: a scalar
  const std::byte* data = nullptr;  // as the file has it: not necessarily aligned to the element type
  size_t bytes = 0;
  std::string other_dtype;  // what the file calls it, where dtype is kOther

  int64_t elements() const;
  std::string dtype_name() const { return dtype == DType::kOther ? other_dtype : DTypeName(dtype); }
};

// "[4096, 11008]"
std::string ShowShape(const std::vector<int64_t>& shape);

// Reads the header of a safetensors file that is at `contents` in whole: u64 little-endian header length, JSON header,
// buffer. The tensors come in the order of the buffer, and cover it without overlap or hole. `file` is only named in
// errors. `metadata`, if given, takes the header's __metadata__.
absl::StatusOr<std::vector<TensorView>> ParseSafetensors(std::span<const std::byte> contents, const std::string& file,
                                                         std::map<std::string, std::string>* metadata = nullptr);

// A memory-mapped safetensors file. Its tensors are checked to lie inside the file as it was at Open; a file that
// somebody cuts later ends the process with SIGBUS, as with every mapping. Owns: the mapping. Thread: immutable after
// Open; DropPages may be called from any thread.
class SafetensorsFile {
 public:
  static absl::StatusOr<SafetensorsFile> Open(const std::string& path);

  SafetensorsFile(SafetensorsFile&& other) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&& other) noexcept;
  ~SafetensorsFile();

  const std::string& path() const { return path_; }
  const std::vector<TensorView>& tensors() const { return tensors_; }
  // What the header says besides. Where tensors share memory, safetensors stores one, and says here by its name that
  // another one is the same.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  bool Contains(const TensorView& tensor) const;

  // Lets the kernel take back this process's pages of the tensor (one of this file's). Reading it again is allowed; the
  // pages then come from the page cache or the disk.
  void DropPages(const TensorView& tensor) const { DropPages(tensor, 0, tensor.bytes); }
  // Of a range of its bytes. REQUIRES: it lies inside the tensor.
  void DropPages(const TensorView& tensor, size_t first, size_t bytes) const;

 private:
  SafetensorsFile() = default;

  std::string path_;
  std::span<const std::byte> mapping_;
  std::vector<TensorView> tensors_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_MODEL_SAFETENSORS_H_
