#include "engine/model/synth.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/model/convert.h"
#include "engine/model/families.h"
#include "engine/model/model_config.h"
#include "engine/model/shapes.h"
#include "kernels/float_types.h"
#include "numa/check.h"

namespace fastdecode {
namespace {

constexpr int64_t kChunkElements = 1 << 20;

// The distribution of one tensor's elements.
struct Distribution {
  float mean = 0.0f;
  float deviation = 1.0f;
};

// Unit-sized activations everywhere: a matrix keeps the size of what it is applied to, and the 2 * layers sums into the
// residual stream add up to about one.
Distribution DistributionOf(const ModelSpec& spec, TensorRole role) {
  const auto fan_in = [](double inputs) { return static_cast<float>(1.0 / std::sqrt(inputs)); };
  const double q_width = double{1} * spec.heads * spec.head_dim;
  const float stored_one = spec.norm.one_plus ? 0.0f : 1.0f;
  const int embedding = spec.embedding_width == 0 ? spec.hidden : spec.embedding_width;
  switch (role) {
    case TensorRole::kEmbedding:
      // Tied, it is the head too, and only the head cares for its size: a norm follows the embedding.
      return {0.0f, spec.tied_embeddings ? fan_in(embedding) : 1.0f};
    case TensorRole::kHead:
    case TensorRole::kProjectIn:
      return {0.0f, fan_in(embedding)};
    case TensorRole::kPositions:
      return {0.0f, 0.1f};
    case TensorRole::kProjectOut:
    case TensorRole::kQ:
    case TensorRole::kK:
    case TensorRole::kV:
    case TensorRole::kGate:
    case TensorRole::kUp:
      return {0.0f, fan_in(spec.hidden)};
    case TensorRole::kO:
      return {0.0f, fan_in(2.0 * spec.layers * q_width)};
    case TensorRole::kDown:
      return {0.0f, fan_in(2.0 * spec.layers * spec.intermediate)};
    case TensorRole::kAttentionNorm:
    case TensorRole::kMlpNorm:
    case TensorRole::kFinalNorm:
    case TensorRole::kQNorm:
    case TensorRole::kKNorm:
      return {stored_one, 0.1f};
    case TensorRole::kAttentionAfterNorm:
    case TensorRole::kMlpAfterNorm:
      return {fan_in(2.0 * spec.layers) - 1.0f + stored_one, 0.1f * fan_in(2.0 * spec.layers)};
    case TensorRole::kAttentionNormBias:
    case TensorRole::kMlpNormBias:
    case TensorRole::kFinalNormBias:
    case TensorRole::kQBias:
    case TensorRole::kKBias:
    case TensorRole::kVBias:
    case TensorRole::kOBias:
    case TensorRole::kGateBias:
    case TensorRole::kUpBias:
    case TensorRole::kDownBias:
      return {0.0f, 0.1f};
  }
  FD_CHECK(false, "every role has a distribution");
  return {};
}

// splitmix64's finaliser: each input bit reaches every output bit.
uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// A stream of its own for each (seed, tensor name): FNV-1a of the name.
uint64_t StreamKey(uint64_t seed, const std::string& name) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
  return Mix(hash ^ Mix(seed + 0x9e3779b97f4a7c15u));
}

// Which channels of a KV head are outliers: [head_dim]. Rope's pairs are (i, i + head_dim / 2).
std::vector<bool> OutlierChannels(const ModelSpec& spec, const SynthOptions& options, int layer, int kv_head) {
  const uint64_t key = StreamKey(options.seed, absl::StrCat("k outliers of layer ", layer, ", head ", kv_head));
  const int half = spec.head_dim / 2;
  std::vector<std::pair<uint64_t, int>> pairs;
  for (int i = 0; i < half; ++i) pairs.emplace_back(Mix(key + static_cast<uint64_t>(i)), i);
  std::sort(pairs.begin(), pairs.end());
  std::vector<bool> is_outlier(static_cast<size_t>(spec.head_dim));
  for (int i = 0; i < options.k_outliers / 2; ++i) {
    const size_t channel = static_cast<size_t>(pairs[static_cast<size_t>(i)].second);
    is_outlier[channel] = is_outlier[channel + static_cast<size_t>(half)] = true;
  }
  return is_outlier;
}

// Elements [first, first + count) of a stream. Near-normal: the sum of four uniform 16-bit numbers, exact in integers,
// so that every compiler gives the same bits; it never leaves 3.5 deviations.
void FillRandom(uint64_t key, int64_t first, int64_t count, Distribution distribution, float* out) {
  constexpr float kSumMean = 2.0f * 65535.0f;
  constexpr double kSumDeviation = 37837.22;  // sqrt(4 * (65536^2 - 1) / 12)
  const float scale = static_cast<float>(distribution.deviation / kSumDeviation);
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t bits = Mix(key + static_cast<uint64_t>(first + i) * 0x9e3779b97f4a7c15u);
    const uint64_t sum = (bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48);
    out[i] = distribution.mean + scale * (static_cast<float>(static_cast<int32_t>(sum)) - kSumMean);
  }
}

// Turns `count` values into the file's type in place of `bytes`.
void Encode(const float* values, int64_t count, DType dtype, std::byte* bytes) {
  if (dtype == DType::kF32) {
    std::memcpy(bytes, values, static_cast<size_t>(count) * sizeof(float));
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    const uint16_t half = dtype == DType::kBf16 ? ToBf16(values[i]) : ToF16(values[i]);
    std::memcpy(bytes + i * 2, &half, sizeof(half));
  }
}

int64_t BytesOf(const ExpectedTensor& tensor, DType dtype) {
  int64_t bytes = DTypeBytes(dtype);
  for (const int64_t extent : tensor.shape) bytes *= extent;
  return bytes;
}

// A new file that is written once from front to back.
// Owns: the descriptor.
class NewFile {
 public:
  explicit NewFile(const std::filesystem::path& path)
      : path_(path.string()), fd_(open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666)) {
    if (fd_ < 0) Fail("cannot create");
  }
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;
  ~NewFile() {
    if (fd_ >= 0) close(fd_);
  }

  // The first error stays; nothing is written after it.
  void Write(std::span<const std::byte> bytes) {
    while (status_.ok() && !bytes.empty()) {
      const ssize_t n = write(fd_, bytes.data(), bytes.size());
      if (n > 0) {
        bytes = bytes.subspan(static_cast<size_t>(n));
      } else if (n == 0 || errno != EINTR) {
        Fail("cannot write");
      }
    }
  }
  void Write(const std::string& text) { Write(std::as_bytes(std::span(text))); }

  absl::Status Close() {
    const int fd = std::exchange(fd_, -1);
    if (fd >= 0 && close(fd) != 0 && status_.ok()) Fail("cannot write");
    return status_;
  }
  const absl::Status& status() const { return status_; }

 private:
  void Fail(const char* what) { status_ = absl::ErrnoToStatus(errno, absl::StrCat(path_, ": ", what)); }

  const std::string path_;
  int fd_;
  absl::Status status_;
};

absl::Status WriteTextFile(const std::filesystem::path& path, const std::string& text) {
  NewFile file(path);
  file.Write(text);
  return file.Close();
}

// Writes one checkpoint into an existing empty folder.
// Owns: the two chunk buffers, which bound its memory. Thread: the caller's.
class SynthWriter {
 public:
  SynthWriter(const ModelSpec& spec, const SynthOptions& options, const SynthProgress& progress,
              std::filesystem::path dir)
      : spec_(spec), options_(options), progress_(progress), dir_(std::move(dir)) {
    PlanShards();
  }

  absl::Status WriteAll() {
    absl::Status status = WriteTextFile(dir_ / "config.json", WriteModelConfig(spec_, options_.dtype));
    for (size_t i = 0; status.ok() && i < shards_.size(); ++i) status = WriteShard(shards_[i], dir_ / ShardName(i));
    if (status.ok() && shards_.size() > 1) {
      status = WriteTextFile(dir_ / "model.safetensors.index.json", IndexText());
    }
    return status;
  }

 private:
  using Shard = std::vector<ExpectedTensor>;

  void PlanShards() {
    const Family* family = FindFamily(spec_.family);
    FD_CHECK(family != nullptr, "the spec's family is in the table");
    int64_t shard_bytes = 0;
    for (ExpectedTensor& tensor : ExpectedTensors(family->tensors, spec_)) {
      const int64_t bytes = BytesOf(tensor, options_.dtype);
      if (shards_.empty() || shard_bytes + bytes > options_.shard_bytes_max) {
        shards_.emplace_back();
        shard_bytes = 0;
      }
      shards_.back().push_back(std::move(tensor));
      shard_bytes += bytes;
      total_bytes_ += bytes;
    }
  }

  std::string ShardName(size_t index) const {
    if (shards_.size() == 1) return "model.safetensors";
    return absl::StrFormat("model-%05d-of-%05d.safetensors", index + 1, shards_.size());
  }

  std::string IndexText() const {
    nlohmann::ordered_json index = {{"metadata", {{"total_size", total_bytes_}}}, {"weight_map", {}}};
    for (size_t i = 0; i < shards_.size(); ++i) {
      for (const ExpectedTensor& tensor : shards_[i]) index["weight_map"][tensor.name] = ShardName(i);
    }
    return index.dump(2) + "\n";
  }

  // The header length and the header, padded so that the buffer begins at a multiple of 8.
  std::string HeaderText(const Shard& shard) const {
    nlohmann::ordered_json header = {{"__metadata__", {{"format", "pt"}}}};
    int64_t offset = 0;
    for (const ExpectedTensor& tensor : shard) {
      const int64_t end = offset + BytesOf(tensor, options_.dtype);
      header[tensor.name] = {
          {"dtype", DTypeName(options_.dtype)}, {"shape", tensor.shape}, {"data_offsets", {offset, end}}};
      offset = end;
    }
    std::string json = header.dump();
    json.resize((json.size() + 7) / 8 * 8, ' ');
    std::string text;
    for (int i = 0; i < 8; ++i) text.push_back(static_cast<char>(json.size() >> (8 * i) & 0xff));
    return text + json;
  }

  absl::Status WriteShard(const Shard& shard, const std::filesystem::path& path) {
    NewFile file(path);
    file.Write(HeaderText(shard));
    for (const ExpectedTensor& tensor : shard) {
      absl::Status status = WriteTensor(tensor, &file);
      if (!status.ok()) return status;
    }
    return file.Close();
  }

  // Scales what belongs to outlier channels among elements [first, first + count) of a tensor, which `values_` has.
  void PlantOutliers(const ExpectedTensor& tensor, int64_t first, int64_t count) {
    const bool is_q = tensor.role() == TensorRole::kQ || tensor.role() == TensorRole::kQBias;
    const bool is_k = tensor.role() == TensorRole::kK || tensor.role() == TensorRole::kKBias;
    if (options_.k_outliers == 0 || (!is_q && !is_k)) return;
    const float scale = static_cast<float>(is_k ? options_.k_outlier_factor : 1 / options_.k_outlier_factor);
    const float mean = tensor.role() == TensorRole::kKBias ? 1.0f : 0.0f;
    const int64_t inputs = tensor.shape.size() == 2 ? tensor.shape[1] : 1;
    int kv_head = -1;
    std::vector<bool> is_outlier;
    for (int64_t i = 0; i < count;) {
      const int64_t row = (first + i) / inputs, end = std::min(count, (row + 1) * inputs - first);
      const int head = static_cast<int>(row / spec_.head_dim), head_of_kv = is_k ? head : head / spec_.group();
      if (head_of_kv != kv_head) is_outlier = OutlierChannels(spec_, options_, tensor.layer, kv_head = head_of_kv);
      if (!is_outlier[static_cast<size_t>(row % spec_.head_dim)]) {
        i = end;
        continue;
      }
      for (; i < end; ++i) values_[static_cast<size_t>(i)] = scale * (values_[static_cast<size_t>(i)] + mean);
    }
  }

  absl::Status WriteTensor(const ExpectedTensor& tensor, NewFile* file) {
    const uint64_t key = StreamKey(options_.seed, tensor.name);
    const Distribution distribution = DistributionOf(spec_, tensor.role());
    const int64_t elements = BytesOf(tensor, options_.dtype) / DTypeBytes(options_.dtype);
    for (int64_t first = 0; first < elements && file->status().ok(); first += kChunkElements) {
      const int64_t count = std::min(kChunkElements, elements - first);
      const size_t bytes = static_cast<size_t>(count * DTypeBytes(options_.dtype));
      FillRandom(key, first, count, distribution, values_.data());
      PlantOutliers(tensor, first, count);
      Encode(values_.data(), count, options_.dtype, encoded_.data());
      file->Write(std::span(encoded_).first(bytes));
      done_bytes_ += static_cast<int64_t>(bytes);
      if (progress_ && !progress_(done_bytes_, total_bytes_)) {
        return absl::CancelledError(absl::StrCat(options_.out_dir, ": stopped, nothing is left"));
      }
    }
    return file->status();
  }

  const ModelSpec spec_;
  const SynthOptions options_;
  const SynthProgress& progress_;
  const std::filesystem::path dir_;
  std::vector<Shard> shards_;
  std::vector<float> values_ = std::vector<float>(kChunkElements);
  std::vector<std::byte> encoded_ = std::vector<std::byte>(kChunkElements * sizeof(float));
  int64_t done_bytes_ = 0;
  int64_t total_bytes_ = 0;
};

// Where the checkpoint goes: an absolute path that does not exist, or an empty folder.
absl::StatusOr<std::filesystem::path> CheckDestination(const std::string& out_dir) {
  if (out_dir.empty()) return absl::InvalidArgumentError("out_dir is empty, expected a folder to write");
  std::error_code error;
  std::filesystem::path path = std::filesystem::absolute(out_dir, error);
  if (!error) path = std::filesystem::weakly_canonical(path, error);
  if (error) return absl::ErrnoToStatus(error.value(), absl::StrCat(out_dir, ": cannot look up"));
  if (path.filename().empty()) path = path.parent_path();
  const std::filesystem::file_status info = std::filesystem::status(path, error);
  if (info.type() == std::filesystem::file_type::not_found) return path;
  if (info.type() != std::filesystem::file_type::directory) {
    return absl::AlreadyExistsError(absl::StrCat(out_dir, ": is there and is not a folder"));
  }
  const std::filesystem::directory_iterator entry(path, error);
  if (error) return absl::ErrnoToStatus(error.value(), absl::StrCat(out_dir, ": cannot read"));
  if (entry == std::filesystem::directory_iterator()) return path;
  return absl::AlreadyExistsError(
      absl::StrCat(out_dir, ": is a folder that is not empty: ", entry->path().filename().string(), " is in it"));
}

// Moves what `partial` has up into `out`, the empty folder that it lies in: config.json, without which there is no
// checkpoint, at the very end.
absl::Status MoveUp(const std::filesystem::path& partial, const std::filesystem::path& out) {
  std::vector<std::filesystem::path> names;
  std::error_code error, ignored;
  for (std::filesystem::directory_iterator entry(partial, error), end; !error && entry != end; entry.increment(error)) {
    names.push_back(entry->path().filename());
  }
  std::partition(names.begin(), names.end(), [](const auto& name) { return name != "config.json"; });
  size_t moved = 0;
  while (!error && moved < names.size()) {
    std::filesystem::rename(partial / names[moved], out / names[moved], error);
    if (!error) ++moved;
  }
  if (!error) std::filesystem::remove(partial, error);
  if (!error) return absl::OkStatus();
  for (size_t i = 0; i < moved; ++i) std::filesystem::remove(out / names[i], ignored);
  return absl::ErrnoToStatus(error.value(), absl::StrCat(out.string(), ": cannot be filled"));
}

}  // namespace

namespace {

// Whether channels of q and k can be scaled against each other in the checkpoint.
bool HasPlainKeys(const ModelSpec& spec) {
  if (spec.qk_norm != ModelSpec::QkNorm::kNone || spec.rope.dims != 0 || spec.interleaved_rope) return false;
  for (const ExpectedTensor& tensor : ExpectedTensors(FindFamily(spec.family)->tensors, spec)) {
    if (tensor.role() == TensorRole::kQ) {
      return tensor.row->role_count == 1 && tensor.row->layout == TensorLayout::kRows;
    }
  }
  return false;
}

}  // namespace

absl::Status WriteSynthetic(const ModelSpec& spec, const SynthOptions& options, const SynthProgress& progress) {
  if (FindFamily(spec.family) == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("family is \"", spec.family, "\", expected one of ", FamilyNames()));
  }
  if (options.k_outliers < 0 || options.k_outliers > spec.head_dim || options.k_outliers % 2 != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("k_outliers is %d, expected an even number from 0 to %d, the size of a head",
                        options.k_outliers, spec.head_dim));
  }
  if (options.k_outliers != 0 && !HasPlainKeys(spec)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("k_outliers is %d, expected 0 for a %s model: outliers need q and k as tensors of their own, "
                        "that are rotated as a whole and have no norm",
                        options.k_outliers, spec.family));
  }
  if (!(options.k_outlier_factor >= 1 && options.k_outlier_factor <= 1024)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("k_outlier_factor is %g, expected a number from 1 to 1024", options.k_outlier_factor));
  }
  // What could not be read back is not written.
  const absl::StatusOr<ModelSpec> read =
      ParseModelSpec(WriteModelConfig(spec, options.dtype), std::nullopt, options.out_dir);
  if (!read.ok()) return read.status();
  const absl::StatusOr<std::filesystem::path> out = CheckDestination(options.out_dir);
  if (!out.ok()) return out.status();
  std::error_code ignored;
  const bool exists = std::filesystem::exists(*out, ignored);
  // mkdir, not mkdtemp: the folder gets the permissions that the user's umask says.
  const std::string partial = absl::StrCat(out->string(), exists ? "/" : "", ".partial-", getpid());
  if (mkdir(partial.c_str(), 0777) != 0) return absl::ErrnoToStatus(errno, absl::StrCat(partial, ": cannot create"));

  absl::Status status = SynthWriter(spec, options, progress, partial).WriteAll();
  if (status.ok() && exists) {
    status = MoveUp(partial, *out);
  } else if (status.ok() && rename(partial.c_str(), out->c_str()) != 0) {
    status = absl::ErrnoToStatus(errno, absl::StrCat(options.out_dir, ": cannot be given its name"));
  }
  if (!status.ok()) std::filesystem::remove_all(partial, ignored);
  return status;
}

absl::Status WriteSynthetic(const SynthOptions& options, const SynthProgress& progress) {
  absl::StatusOr<ModelSpec> spec = FindShape(options.shape);
  if (!spec.ok()) return spec.status();
  if (options.layers != 0) SetLayers(options.layers, &*spec);
  return WriteSynthetic(*spec, options, progress);
}

}  // namespace fastdecode
