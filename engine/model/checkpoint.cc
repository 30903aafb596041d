#include "engine/model/checkpoint.h"

#include <limits.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "engine/model/json_fields.h"
#include "engine/model/model_folder.h"
#include "numa/check.h"

namespace fastdecode {
namespace {

constexpr char kSingleFile[] = "model.safetensors";
constexpr char kIndexFile[] = "model.safetensors.index.json";
constexpr char kAdapterFile[] = "adapter_config.json";
constexpr int64_t kIndexBytesMax = 32 << 20;
constexpr size_t kNamedMax = 4;  // of what a note is about

// Also what cannot be opened, such as a link to nothing: opening it says why.
bool IsThere(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::symlink_status(path, ignored).type() != std::filesystem::file_type::not_found;
}

// A shard lies in the model's own folder, under a name that errors can show.
bool IsPlainFileName(const std::string& name) {
  const auto is_plain = [](char c) { return c != '/' && absl::ascii_isprint(static_cast<unsigned char>(c)); };
  return !name.empty() && name.size() <= NAME_MAX && name != "." && name != ".." && std::ranges::all_of(name, is_plain);
}

// The index's map from tensor to file. Error: names the index and the entry.
absl::StatusOr<std::vector<std::pair<std::string, std::string>>> ReadIndex(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadTextFile(path, kIndexBytesMax);
  if (!text.ok()) return text.status();
  const absl::StatusOr<nlohmann::json> root = ParseJsonObject(*text, path);
  if (!root.ok()) return root.status();
  const auto map = root->find("weight_map");
  if (map == root->end() || !map->is_object() || map->empty()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": weight_map is ",
                                                   map == root->end() ? "missing" : ShowJson(*map),
                                                   ", expected an object from tensor to file name"));
  }
  std::vector<std::pair<std::string, std::string>> entries;
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string() || !IsPlainFileName(file.get<std::string>())) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": weight_map.", ShowText(tensor), " is ", ShowJson(file),
                                                     ", expected the name of a file in the same folder"));
    }
    entries.emplace_back(tensor, file.get<std::string>());
  }
  return entries;
}

bool AreEqual(const TensorView& a, const TensorView& b) {
  return a.dtype_name() == b.dtype_name() && a.shape == b.shape && a.bytes == b.bytes &&
         (a.bytes == 0 || std::memcmp(a.data, b.data, a.bytes) == 0);
}

// Without weights there is nothing to load, but a folder may be looked at before they are there; with those of another
// format it is the wrong folder.
absl::Status NoWeights(const std::string& model_dir) {
  const std::string guess = GuessWhyNoWeights(model_dir);
  const std::string what = absl::StrCat(model_dir, ": neither ", kSingleFile, " nor ", kIndexFile, " is there");
  if (guess.empty()) return absl::NotFoundError(absl::StrCat(what, ": it has no weights"));
  return absl::InvalidArgumentError(absl::StrCat(what, ": ", guess));
}

}  // namespace

absl::StatusOr<Checkpoint> Checkpoint::Open(const std::string& model_dir) {
  std::error_code error;
  if (!std::filesystem::is_directory(model_dir, error)) {
    return absl::NotFoundError(absl::StrCat(model_dir, ": not a folder that can be read"));
  }
  const std::filesystem::path dir(model_dir);
  Checkpoint checkpoint;
  absl::Status status;
  if (IsThere(dir / kSingleFile)) {
    checkpoint.path_ = (dir / kSingleFile).string();
    status = checkpoint.AddFile(checkpoint.path_);
    if (IsThere(dir / kIndexFile)) {
      checkpoint.notes_.push_back(
          absl::StrCat(checkpoint.path_, ": it counts, and ", kIndexFile, " beside it does not, as in transformers"));
    }
  } else if (IsThere(dir / kIndexFile)) {
    checkpoint.path_ = (dir / kIndexFile).string();
    status = checkpoint.OpenShards(model_dir);
  } else {
    status = NoWeights(model_dir);
  }
  if (!status.ok()) return status;
  if (IsThere(dir / kAdapterFile)) {
    checkpoint.notes_.push_back(absl::StrCat((dir / kAdapterFile).string(),
                                             ": the LoRA adapter beside the model's weights is not applied; merge it "
                                             "into them first"));
  }
  return checkpoint;
}

absl::Status Checkpoint::OpenShards(const std::string& model_dir) {
  const auto index = ReadIndex(path_);
  if (!index.ok()) return index.status();
  std::set<std::string> shards;
  for (const auto& [tensor, shard] : *index) shards.insert(shard);
  for (const std::string& shard : shards) {
    const absl::Status status = AddFile((std::filesystem::path(model_dir) / shard).string());
    if (status.ok()) continue;
    return absl::Status(status.code(),
                        absl::StrCat(path_, ": names shard ", shard, ": ", std::string(status.message())));
  }
  size_t contradictions = 0;
  for (const auto& [name, shard] : *index) {
    const TensorView* tensor = Find(name);
    const std::string where = tensor == nullptr ? "" : std::filesystem::path(PathOf(*tensor)).filename().string();
    if (where == shard || in_two_files_.contains(name) || ++contradictions > kNamedMax) continue;
    notes_.push_back(absl::StrCat(path_, ": weight_map.", ShowText(name), " is \"", shard, "\", which ",
                                  tensor == nullptr ? "has no such tensor, nor has another shard"
                                                    : absl::StrCat("does not count: it is taken from ", where)));
  }
  if (contradictions > kNamedMax) {
    notes_.push_back(absl::StrCat(path_, ": so are ", contradictions - kNamedMax, " more entries of weight_map"));
  }
  return absl::OkStatus();
}

absl::Status Checkpoint::AddFile(const std::string& path) {
  absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(path);
  if (!file.ok()) return file.status();
  // The views stay where they are when the file moves into the vector.
  for (const TensorView& tensor : file->tensors()) {
    const TensorView*& by_name = by_name_[tensor.name];
    if (by_name != nullptr) in_two_files_.insert(tensor.name);
    if (by_name != nullptr && !AreEqual(*by_name, tensor)) {
      notes_.push_back(absl::StrCat(path, ": tensor ", ShowText(tensor.name), " is in ", PathOf(*by_name),
                                    " too, with other values: the former counts, as in transformers, which read the "
                                    "shards in the order of their names"));
    }
    by_name = &tensor;
    total_bytes_ += static_cast<int64_t>(tensor.bytes);
  }
  // A tensor may be stored under one of its names, with the others in the metadata as {"other name": "name"}.
  for (const auto& [alias, name] : file->metadata()) {
    if (const auto tensor = by_name_.find(name); tensor != by_name_.end()) aliases_.emplace(alias, tensor->second);
  }
  files_.push_back(*std::move(file));
  return absl::OkStatus();
}

const TensorView* Checkpoint::Find(const std::string& name) const {
  if (const auto it = by_name_.find(name); it != by_name_.end()) return it->second;
  const auto alias = aliases_.find(name);
  return alias == aliases_.end() ? nullptr : alias->second;
}

const SafetensorsFile& Checkpoint::FileOf(const TensorView& tensor) const {
  for (const SafetensorsFile& file : files_) {
    if (file.Contains(tensor)) return file;
  }
  FD_CHECK(false, "the tensor is one of this checkpoint");
  return files_.front();
}

}  // namespace fastdecode
