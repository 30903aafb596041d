#ifndef FASTDECODE_ENGINE_MODEL_CHECKPOINT_H_
#define FASTDECODE_ENGINE_MODEL_CHECKPOINT_H_

#include <cstdint>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/safetensors.h"

namespace fastdecode {

// The tensors of a model folder: model.safetensors, or the shards that model.safetensors.index.json names. As in
// transformers, the former counts where both are there, of the index no more than the names of the shards, and of a
// tensor that is in two shards the one of the later name.
// Owns: the mapped files; the views that it hands out live as long as it. Thread: immutable after Open; DropPages may
// be called from any thread.
class Checkpoint {
 public:
  static absl::StatusOr<Checkpoint> Open(const std::string& model_dir);

  // nullptr if there is no tensor of this name. A name that a file says to be another one of a tensor of its is as
  // good.
  const TensorView* Find(const std::string& name) const;
  // All tensors, file after file.
  const std::vector<SafetensorsFile>& files() const { return files_; }

  // Sum of the tensors' bytes.
  int64_t total_bytes() const { return total_bytes_; }
  // For people: what of the folder does not count, or contradicts itself, and what counts then.
  const std::vector<std::string>& notes() const { return notes_; }
  // What was opened, for errors: the path of model.safetensors or of the index.
  const std::string& path() const { return path_; }
  // The file that holds a tensor of this checkpoint.
  const std::string& PathOf(const TensorView& tensor) const { return FileOf(tensor).path(); }

  // Gives the tensor's resident pages back, once it has been packed.
  void DropPages(const TensorView& tensor) const { FileOf(tensor).DropPages(tensor); }
  // Those of a range of its bytes. REQUIRES: it lies inside the tensor.
  void DropPages(const TensorView& tensor, size_t first, size_t bytes) const {
    FileOf(tensor).DropPages(tensor, first, bytes);
  }

 private:
  Checkpoint() = default;
  absl::Status AddFile(const std::string& path);
  absl::Status OpenShards(const std::string& model_dir);
  const SafetensorsFile& FileOf(const TensorView& tensor) const;

  std::string path_;
  std::vector<SafetensorsFile> files_;
  std::unordered_map<std::string, const TensorView*> by_name_;  // into files_
  std::unordered_map<std::string, const TensorView*> aliases_;  // for names that are not in by_name_
  std::unordered_set<std::string> in_two_files_;
  std::vector<std::string> notes_;
  int64_t total_bytes_ = 0;
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_MODEL_CHECKPOINT_H_
