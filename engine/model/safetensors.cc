#include "engine/model/safetensors.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "engine/model/json_fields.h"
#include "engine/model/model_folder.h"
#include "numa/check.h"

namespace fastdecode {
namespace {

constexpr size_t kLengthBytes = 8;
constexpr uint64_t kHeaderBytesMax = 100'000'000;
constexpr size_t kRankMax = 8;
constexpr size_t kMetadataMax = 10'000;        // entries that are kept
constexpr size_t kMetadataBytesMax = 1 << 10;  // of a value that is kept

// What the header says of one tensor; nothing of it is checked against the others or the file yet.
struct Entry {
  std::string name;
  std::string dtype;
  std::vector<uint64_t> shape;
  std::vector<uint64_t> offsets;  // begin and end in the buffer
  bool has_shape = false;
};

// Takes the header's JSON apart event by event, so that memory stays in proportion to the tensors named and a name that
// occurs twice is seen. Accepts exactly
//   {"NAME": {"dtype": "...", "shape": [...], "data_offsets": [begin, end]}, ..., "__metadata__": {"...": "...", ...}}
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::vector<Entry> entries;
  std::string error;
  std::map<std::string, std::string> metadata;

  bool null() override { return (place_ == Place::kRoot && field_ == kMetadata) || Unexpected("null"); }
  bool boolean(bool value) override { return Unexpected(value ? "true" : "false"); }
  bool number_integer(number_integer_t value) override { return Unexpected(absl::StrCat(value)); }
  bool number_float(number_float_t, const string_t& text) override { return Unexpected(ShowText(text)); }
  bool binary(binary_t&) override { return Unexpected("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ == Place::kShape && entries.back().shape.size() < kRankMax) {
      entries.back().shape.push_back(value);
      return true;
    }
    if (place_ == Place::kOffsets && entries.back().offsets.size() < 2) {
      entries.back().offsets.push_back(value);
      return true;
    }
    return Unexpected(absl::StrCat(value));
  }

  bool string(string_t& value) override {
    if (place_ == Place::kMetadata) {
      if (metadata.size() < kMetadataMax && value.size() <= kMetadataBytesMax) metadata.emplace(metadata_key_, value);
      return true;
    }
    if (place_ != Place::kTensor || field_ != "dtype") return Unexpected(ShowJson(value));
    entries.back().dtype = value;
    return true;
  }

  bool start_object(std::size_t) override {
    if (place_ == Place::kStart) {
      place_ = Place::kRoot;
      return true;
    }
    if (place_ != Place::kRoot) return Unexpected("an object");
    if (field_ == kMetadata) {
      place_ = Place::kMetadata;
      return true;
    }
    place_ = Place::kTensor;
    entries.push_back({});
    entries.back().name = field_;
    fields_seen_.clear();
    return true;
  }

  bool key(string_t& name) override {
    if (place_ == Place::kMetadata) {
      metadata_key_ = name;
      return true;
    }
    const bool is_new = place_ == Place::kRoot ? names_.insert(name).second : fields_seen_.insert(name).second;
    field_ = name;
    return is_new || Fail("is there twice");
  }

  bool end_object() override {
    if (place_ == Place::kTensor) {
      const Entry& entry = entries.back();
      field_.clear();
      if (!fields_seen_.contains("dtype")) return Fail("dtype is missing");
      if (!entry.has_shape) return Fail("shape is missing");
      if (entry.offsets.size() != 2) return Fail("data_offsets is missing or has not two numbers");
    }
    place_ = Place::kRoot;
    return true;
  }

  bool start_array(std::size_t) override {
    if (place_ != Place::kTensor || (field_ != "shape" && field_ != "data_offsets")) return Unexpected("an array");
    if (field_ == "shape") entries.back().has_shape = true;
    place_ = field_ == "shape" ? Place::kShape : Place::kOffsets;
    return true;
  }

  bool end_array() override {
    place_ = Place::kTensor;
    return true;
  }

  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception& what) override {
    error = absl::StrCat("header is not valid JSON: ", ShowParseError(what));
    return false;
  }

 private:
  static constexpr std::string_view kMetadata = "__metadata__";
  enum class Place { kStart, kRoot, kMetadata, kTensor, kShape, kOffsets };

  bool Unexpected(const std::string& value) { return Fail(absl::StrCat("is ", value, ", which is not expected here")); }

  bool Fail(const std::string& problem) {
    const bool in_tensor = place_ == Place::kTensor || place_ == Place::kShape || place_ == Place::kOffsets;
    error = "header: ";
    if (in_tensor) absl::StrAppend(&error, "tensor ", ShowText(entries.back().name), ": ");
    if (!field_.empty()) absl::StrAppend(&error, ShowText(field_), " ");
    absl::StrAppend(&error, problem);
    return false;
  }

  Place place_ = Place::kStart;
  std::string field_;  // the last key
  std::string metadata_key_;
  std::unordered_set<std::string> names_;
  std::unordered_set<std::string> fields_seen_;
};

// A type that safetensors has; of those that we do not read no more than how many bits an element takes.
struct KnownType {
  std::string_view name;
  DType type;
  uint64_t bits;
};
constexpr KnownType kKnownTypes[] = {
    {"F32", DType::kF32, 32},          {"F16", DType::kF16, 16},      {"BF16", DType::kBf16, 16},
    {"F64", DType::kF64, 64},          {"C64", DType::kOther, 64},    {"I64", DType::kOther, 64},
    {"U64", DType::kOther, 64},        {"I32", DType::kOther, 32},    {"U32", DType::kOther, 32},
    {"I16", DType::kOther, 16},        {"U16", DType::kOther, 16},    {"I8", DType::kOther, 8},
    {"U8", DType::kOther, 8},          {"BOOL", DType::kOther, 8},    {"F8_E4M3", DType::kOther, 8},
    {"F8_E5M2", DType::kOther, 8},     {"F8_E8M0", DType::kOther, 8}, {"F8_E4M3FNUZ", DType::kOther, 8},
    {"F8_E5M2FNUZ", DType::kOther, 8}, {"F6_E2M3", DType::kOther, 6}, {"F6_E3M2", DType::kOther, 6},
    {"F4", DType::kOther, 4}};

// What an array of that shape takes; false if it does not fit.
bool SpanBytes(const std::vector<uint64_t>& shape, uint64_t element_bits, uint64_t* bytes) {
  uint64_t bits = element_bits;
  bool fits = true;
  for (const uint64_t extent : shape) fits = fits && !__builtin_mul_overflow(bits, extent, &bits);
  *bytes = bits / 8;
  for (const uint64_t extent : shape) fits = fits && extent <= uint64_t{std::numeric_limits<int64_t>::max()};
  return fits && bits % 8 == 0;
}

absl::StatusOr<TensorView> MakeView(const Entry& entry, std::span<const std::byte> buffer, const std::string& file) {
  const auto error = [&](const std::string& problem) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": tensor ", ShowText(entry.name), ": ", problem));
  };
  TensorView view;
  view.name = entry.name;
  const auto* known =
      std::ranges::find_if(kKnownTypes, [&entry](const KnownType& type) { return type.name == entry.dtype; });
  if (known == std::end(kKnownTypes)) {
    return error(absl::StrCat("dtype is ", ShowJson(entry.dtype),
                              ", expected F32, F16, BF16, F64 or another one of safetensors"));
  }
  view.dtype = known->type;
  const uint64_t begin = entry.offsets[0];
  const uint64_t end = entry.offsets[1];
  if (begin > end || end > buffer.size()) {
    return error(absl::StrFormat("data_offsets is [%d, %d], expected a range in the %d bytes after the header%s", begin,
                                 end, buffer.size(), end > buffer.size() ? " (is the file truncated?)" : ""));
  }
  uint64_t bytes = 0;
  const bool fits = SpanBytes(entry.shape, known->bits, &bytes);
  if (!fits || bytes != end - begin) {
    return error(absl::StrFormat("data_offsets is [%d, %d], which are %d bytes, expected %s for %s of shape [%s]",
                                 begin, end, end - begin, fits ? absl::StrCat(bytes) : "more than 64 bits count",
                                 entry.dtype, absl::StrJoin(entry.shape, ", ")));
  }
  if (view.dtype == DType::kOther) view.other_dtype = entry.dtype;
  view.shape.assign(entry.shape.begin(), entry.shape.end());
  view.data = buffer.data() + begin;
  view.bytes = bytes;
  return view;
}

// The tensors, in the buffer's order, must follow each other from its first byte to its last.
absl::Status CheckCoverage(const std::vector<TensorView>& tensors, std::span<const std::byte> buffer,
                           const std::string& file) {
  size_t end = 0;
  for (const TensorView& tensor : tensors) {
    const size_t begin = static_cast<size_t>(tensor.data - buffer.data());
    if (begin != end) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s: tensor %s: data_offsets is [%d, %d], which %s the tensor before it, expected to begin at %d", file,
          ShowText(tensor.name), begin, begin + tensor.bytes, begin < end ? "overlaps" : "leaves a hole after", end));
    }
    end += tensor.bytes;
  }
  if (end == buffer.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s: size is %d bytes after the header, expected %d, where the tensors end", file, buffer.size(), end));
}

uint64_t ReadLittleEndian64(const std::byte* bytes) {
  uint64_t value = 0;
  for (int i = 7; i >= 0; --i) value = value << 8 | std::to_integer<uint64_t>(bytes[i]);
  return value;
}

}  // namespace

const char* DTypeName(DType type) {
  switch (type) {
    case DType::kF32:
      return "F32";
    case DType::kF16:
      return "F16";
    case DType::kBf16:
      return "BF16";
    case DType::kF64:
      return "F64";
    case DType::kOther:
      break;
  }
  return "?";
}

int64_t TensorView::elements() const {
  if (dtype != DType::kOther) return static_cast<int64_t>(bytes) / DTypeBytes(dtype);
  int64_t product = 1;  // fits: the parser has checked it
  for (const int64_t extent : shape) product *= extent;
  return product;
}

std::string ShowShape(const std::vector<int64_t>& shape) { return absl::StrCat("[", absl::StrJoin(shape, ", "), "]"); }

absl::StatusOr<std::vector<TensorView>> ParseSafetensors(std::span<const std::byte> contents, const std::string& file,
                                                         std::map<std::string, std::string>* metadata) {
  const std::string guess = GuessContent({reinterpret_cast<const char*>(contents.data()), contents.size()});
  const std::string hint = guess.empty() ? "" : absl::StrCat(": ", guess);
  if (contents.size() < kLengthBytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: size is %d bytes, expected at least %d (is the file truncated?)%s", file, contents.size(),
                        kLengthBytes, hint));
  }
  const uint64_t header_bytes = ReadLittleEndian64(contents.data());
  const uint64_t header_bytes_max = std::min<uint64_t>(kHeaderBytesMax, contents.size() - kLengthBytes);
  if (header_bytes > header_bytes_max && !guess.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": not safetensors", hint));
  }
  if (header_bytes > header_bytes_max) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: header length is %d, expected at most %d in a file of %d bytes (is it safetensors, and whole?)", file,
        header_bytes, header_bytes_max, contents.size()));
  }
  const char* header = reinterpret_cast<const char*>(contents.data()) + kLengthBytes;
  HeaderReader reader;
  if (!nlohmann::json::sax_parse(header, header + header_bytes, &reader)) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": ", reader.error, hint));
  }
  if (metadata != nullptr) *metadata = std::move(reader.metadata);

  const std::span<const std::byte> buffer = contents.subspan(kLengthBytes + header_bytes);
  std::vector<TensorView> tensors;
  tensors.reserve(reader.entries.size());
  for (const Entry& entry : reader.entries) {
    absl::StatusOr<TensorView> view = MakeView(entry, buffer, file);
    if (!view.ok()) return view.status();
    tensors.push_back(*std::move(view));
  }
  // An empty tensor comes before the one that begins at the same byte.
  std::sort(tensors.begin(), tensors.end(), [](const TensorView& a, const TensorView& b) {
    return a.data != b.data ? a.data < b.data : a.bytes < b.bytes;
  });
  const absl::Status coverage = CheckCoverage(tensors, buffer, file);
  if (!coverage.ok()) return coverage;
  return tensors;
}

absl::StatusOr<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  const absl::StatusOr<int> opened = OpenToRead(path);
  if (!opened.ok()) return opened.status();
  const int fd = *opened;
  struct stat info;
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    close(fd);
    return absl::InvalidArgumentError(absl::StrCat(path, ": not a regular file"));
  }
  const size_t size = static_cast<size_t>(info.st_size);
  if (size == 0) {
    close(fd);
    return ParseSafetensors({}, path).status();
  }
  void* mapping = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  const int map_errno = errno;
  close(fd);
  if (mapping == MAP_FAILED) return absl::ErrnoToStatus(map_errno, absl::StrCat(path, ": cannot map ", size, " bytes"));

  SafetensorsFile file;
  file.path_ = path;
  file.mapping_ = {static_cast<const std::byte*>(mapping), size};
  absl::StatusOr<std::vector<TensorView>> tensors = ParseSafetensors(file.mapping_, path, &file.metadata_);
  if (!tensors.ok()) return tensors.status();
  file.tensors_ = *std::move(tensors);
  return file;
}

SafetensorsFile::SafetensorsFile(SafetensorsFile&& other) noexcept
    : path_(std::move(other.path_)),
      mapping_(std::exchange(other.mapping_, {})),
      tensors_(std::move(other.tensors_)),
      metadata_(std::move(other.metadata_)) {}

SafetensorsFile& SafetensorsFile::operator=(SafetensorsFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(mapping_, other.mapping_);
  std::swap(tensors_, other.tensors_);
  std::swap(metadata_, other.metadata_);
  return *this;
}

SafetensorsFile::~SafetensorsFile() {
  if (!mapping_.empty()) munmap(const_cast<std::byte*>(mapping_.data()), mapping_.size());
}

bool SafetensorsFile::Contains(const TensorView& tensor) const {
  return tensor.data >= mapping_.data() && tensor.data + tensor.bytes <= mapping_.data() + mapping_.size();
}

void SafetensorsFile::DropPages(const TensorView& tensor, size_t first, size_t bytes) const {
  FD_CHECK(Contains(tensor), "a tensor's pages are dropped by its own file");
  FD_CHECK(first <= tensor.bytes && bytes <= tensor.bytes - first, "the range lies inside the tensor");
  // Whole pages around the range: a neighbour's share of the outer two just comes back from the page cache.
  const uintptr_t page_bytes = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const std::byte* const begin = tensor.data + first;
  const size_t before = reinterpret_cast<uintptr_t>(begin) % page_bytes;
  if (bytes > 0) madvise(const_cast<std::byte*>(begin) - before, before + bytes, MADV_DONTNEED);
}

}  // namespace fastdecode
