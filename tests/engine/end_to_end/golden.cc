#include "tests/engine/end_to_end/golden.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "tests/tests_folder.h"

namespace fastdecode {

namespace {

std::string Folder() { return TestsFolder() + "/golden/transformers"; }

// A file of [positions][vocab] that goldens.json describes.
std::vector<float> ReadFloats(const std::string& folder, const nlohmann::json& file) {
  std::vector<float> values(file.at("shape").at(0).get<size_t>() * file.at("shape").at(1).get<size_t>());
  const std::streamsize bytes = static_cast<std::streamsize>(values.size() * sizeof(float));
  std::ifstream in(folder + "/" + file.at("file").get<std::string>(), std::ios::binary);
  in.read(reinterpret_cast<char*>(values.data()), bytes);
  EXPECT_EQ(in.gcount(), bytes) << folder;
  return values;
}

}  // namespace

Golden::Golden(const std::string& name) : folder(Folder() + "/" + name) {
  const nlohmann::json json = nlohmann::json::parse(std::ifstream(folder + "/goldens.json"));
  prompt = json.at("prompt_ids").get<std::vector<int32_t>>();
  positions = json.at("positions").get<std::vector<uint32_t>>();
  prompt_lengths = json.at("prompt_lengths").get<std::vector<uint32_t>>();
  largest_logit = json.at("largest_logit").get<double>();
  for (const nlohmann::json& one : json.at("greedy")) {
    greedy.push_back({one.at("prompt_length").get<uint32_t>(), one.at("token_ids").get<std::vector<int32_t>>()});
  }
  vocab = json.at("logits").at("shape").at(1).get<size_t>();
  logits = ReadFloats(folder, json.at("logits"));
  bf16_reference = ReadFloats(folder, json.at("bf16").at("reference"));
  bf16_rms_error = json.at("bf16").at("transformers_rms_error").get<double>();
  bf16_max_error = json.at("bf16").at("transformers_max_error").get<double>();
}

std::vector<std::string> GoldenNames() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(Folder())) {
    if (entry.is_directory()) names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

namespace {

std::vector<std::string> NamesOf(bool llamas) {
  std::vector<std::string> names;
  for (const std::string& name : GoldenNames()) {
    const nlohmann::json config = nlohmann::json::parse(std::ifstream(Folder() + "/" + name + "/config.json"));
    const std::string type = config.at("model_type");
    if ((type == "llama" || type == "mistral") == llamas) names.push_back(name);
  }
  return names;
}

}  // namespace

std::vector<std::string> GoldenLlamas() { return NamesOf(true); }
std::vector<std::string> GoldenFamilies() { return NamesOf(false); }

LogitDifference Compare(const Golden& golden, const std::vector<float>& expected, const std::vector<float>& logits) {
  LogitDifference difference;
  double squares = 0;
  size_t count = 0;
  for (size_t i = 0; i < golden.positions.size(); ++i) {
    if ((golden.positions[i] + 1) * golden.vocab > logits.size()) continue;
    const float* const row = logits.data() + golden.positions[i] * golden.vocab;
    for (size_t v = 0; v < golden.vocab; ++v) {
      double error = std::abs(double{row[v]} - expected[i * golden.vocab + v]);
      if (std::isnan(error)) error = std::numeric_limits<double>::infinity();
      difference.max = std::max(difference.max, error);
      squares += error * error;
      ++count;
    }
  }
  EXPECT_GT(count, 0u) << "no stored position lies in the prompt";
  difference.rms = std::sqrt(squares / static_cast<double>(count));
  return difference;
}

}  // namespace fastdecode
