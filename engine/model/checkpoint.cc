#include "engine/model/checkpoint.h"

#include <limits.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "engine/model/json_fields.h"
#include "numa/check.h"

namespace fastdecode {
namespace {

constexpr char kSingleFile[] = "model.safetensors";
constexpr char kIndexFile[] = "model.safetensors.index.json";
constexpr int64_t kIndexBytesMax = 32 << 20;

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
  } else if (IsThere(dir / kIndexFile)) {
    checkpoint.path_ = (dir / kIndexFile).string();
    status = checkpoint.OpenShards(model_dir);
  } else {
    status = absl::NotFoundError(absl::StrCat(model_dir, ": neither ", kSingleFile, " nor ", kIndexFile, " is there"));
  }
  if (!status.ok()) return status;
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
  for (const auto& [name, shard] : *index) {
    const TensorView* tensor = Find(name);
    if (tensor != nullptr && std::filesystem::path(PathOf(*tensor)).filename() == shard) continue;
    return absl::InvalidArgumentError(absl::StrCat(path_, ": weight_map.", ShowText(name), " is ", ShowJson(shard),
                                                   ", expected a file that has this tensor"));
  }
  return absl::OkStatus();
}

absl::Status Checkpoint::AddFile(const std::string& path) {
  absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(path);
  if (!file.ok()) return file.status();
  // The views stay where they are when the file moves into the vector.
  for (const TensorView& tensor : file->tensors()) {
    const auto [other, is_new] = by_name_.emplace(tensor.name, &tensor);
    if (!is_new) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": tensor ", ShowText(tensor.name), " is in ",
                                                     PathOf(*other->second), " too, expected it once"));
    }
    total_bytes_ += static_cast<int64_t>(tensor.bytes);
  }
  files_.push_back(*std::move(file));
  return absl::OkStatus();
}

const TensorView* Checkpoint::Find(const std::string& name) const {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : it->second;
}

const SafetensorsFile& Checkpoint::FileOf(const TensorView& tensor) const {
  for (const SafetensorsFile& file : files_) {
    if (file.Contains(tensor)) return file;
  }
  FD_CHECK(false, "the tensor is one of this checkpoint");
  return files_.front();
}

}  // namespace fastdecode
