#include <set>
#include <span>
#include <string>
#include <vector>

#include "engine/model/safetensors.h"
#include "numa/check.h"
#include "tests/engine/model/safetensors_text.h"
#include "tests/fuzz/fuzz_target.h"

namespace fastdecode {

bool FuzzOne(const std::string& input) {
  const std::span<const std::byte> contents = AsBytes(input);
  const auto tensors = ParseSafetensors(contents, "FILE");
  if (!tensors.ok()) {
    FD_CHECK(tensors.status().message().substr(0, 6) == "FILE: ", "an error names the file first");
    return false;
  }
  const std::byte* end = nullptr;
  std::set<std::string> names;
  for (const TensorView& tensor : *tensors) {
    int64_t elements = 1;
    for (const int64_t extent : tensor.shape) elements *= extent;
    FD_CHECK(elements == tensor.elements(), "a tensor's bytes are its shape's");
    FD_CHECK(end == nullptr || tensor.data == end, "each tensor begins where the one before it ends");
    FD_CHECK(tensor.data >= contents.data(), "a tensor begins in the file");
    FD_CHECK(names.insert(tensor.name).second, "names are unique");
    end = tensor.data + tensor.bytes;
  }
  FD_CHECK(end == nullptr || end == contents.data() + contents.size(), "the tensors end where the file ends");
  return true;
}

std::vector<std::string> FuzzSeeds() {
  return {
      ZeroSafetensors({}),
      ZeroSafetensors({{"w", {4}}}),
      ZeroSafetensors({{"model.layers.0.mlp.up_proj.weight", {3, 2}}, {"b", {0, 9}}, {"c", {}}}),
      SafetensorsText(
          R"({"__metadata__":{"format":"pt","x":"y"},"b":{"shape":[2],"dtype":"F32","data_offsets":[4,12]},)"
          R"("a":{"dtype":"F16","shape":[1,2],"data_offsets":[0,4]}}  )",
          std::string(12, 'x')),
  };
}

}  // namespace fastdecode
