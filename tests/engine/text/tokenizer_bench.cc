// How fast the tokenizer of a model's folder encodes a text file on one core, for tokenizer_speed.py.
//
// usage: tokenizer_bench DIR FILE [ROUNDS]. Prints one line of JSON: "bytes" of the file, "encode_s" for each of so
// many rounds (default 5) over the file in chunks of lines, and "unbroken_100k_s" and "unbroken_1m_s", in which 100 KB
// and 1 MB of the file's characters without its white space are encoded at once.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "engine/text/tokenizer.h"

namespace fastdecode {
namespace {

constexpr size_t kChunkBytes = 16 << 10;  // as tokenizer_speed.py has it: a long prompt

std::vector<std::string> ChunksOfLines(const std::string& text) {
  std::vector<std::string> chunks;
  for (size_t start = 0; start < text.size();) {
    size_t end = text.find('\n', std::min(start + kChunkBytes, text.size()));
    end = end == std::string::npos ? text.size() : end + 1;
    chunks.push_back(text.substr(start, end - start));
    start = end;
  }
  return chunks;
}

// So many bytes of ASCII letters, digits and marks, again from the start where the text has too few.
std::string Unbroken(const std::string& text, size_t bytes) {
  std::string result;
  while (result.size() < bytes) {
    const size_t before = result.size();
    for (const char c : text) {
      if (c > ' ' && c < '\x7f') result += c;
      if (result.size() == bytes) return result;
    }
    if (result.size() == before) break;
  }
  return result;
}

double CpuSecondsToEncode(const Tokenizer& tokenizer, const std::vector<std::string>& texts) {
  const std::clock_t start = std::clock();
  size_t ids = 0;
  for (const std::string& text : texts) ids += tokenizer.Encode(text, false).size();
  const std::clock_t end = std::clock();
  if (ids == 0) std::fputs("no ids\n", stderr);
  return static_cast<double>(end - start) / CLOCKS_PER_SEC;
}

int Run(const std::string& dir, const std::string& path, int rounds) {
  const auto tokenizer = Tokenizer::Load(dir);
  if (!tokenizer.ok()) {
    std::cerr << tokenizer.status() << "\n";
    return 1;
  }
  std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  content << file.rdbuf();
  const std::string text = content.str();
  const std::vector<std::string> chunks = ChunksOfLines(text);
  nlohmann::json result = {{"bytes", text.size()}};
  for (int round = 0; round < rounds; ++round) {
    result["encode_s"].push_back(CpuSecondsToEncode(**tokenizer, chunks));
    result["unbroken_100k_s"].push_back(CpuSecondsToEncode(**tokenizer, {Unbroken(text, 100'000)}));
    result["unbroken_1m_s"].push_back(CpuSecondsToEncode(**tokenizer, {Unbroken(text, 1'000'000)}));
  }
  std::cout << result << "\n";
  return 0;
}

}  // namespace
}  // namespace fastdecode

int main(int argc, char** argv) {
  if (argc < 3 || argc > 4) {
    std::fputs("usage: tokenizer_bench DIR FILE [ROUNDS]\n", stderr);
    return 2;
  }
  return fastdecode::Run(argv[1], argv[2], argc == 4 ? std::max(1, std::atoi(argv[3])) : 5);
}
