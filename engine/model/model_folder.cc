#include "engine/model/model_folder.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "engine/model/json_fields.h"

namespace fastdecode {
namespace {

constexpr size_t kNamesMax = 10'000;
constexpr size_t kContentBytes = 512;
constexpr size_t kHubNameMax = 96;
constexpr int64_t kAdapterBytesMax = 1 << 20;

constexpr char kConvert[] =
    "convert it once with Python: from transformers import AutoModelForCausalLM as M; "
    "M.from_pretrained(\"DIR\").save_pretrained(\"NEW_DIR\"), and copy the tokenizer's files";
constexpr char kTakeOriginal[] = "take the model's folder as Hugging Face transformers saves it, with *.safetensors";

// The beginning of a file that is none of a model's, as it is, in any case of its letters.
struct Beginning {
  std::string_view bytes;
  const char* is;
  const char* to_do;
};
constexpr char kPointer[] = "it is a pointer that git-lfs left, not the file itself";
constexpr char kPage[] = "it is a web page";
constexpr char kAnswer[] = "it is a server's answer";
constexpr char kUtf16[] = "it is UTF-16, as Windows PowerShell writes";
constexpr char kPull[] = "run 'git lfs install' and 'git lfs pull' where it was cloned, or download it again";
constexpr char kAgain[] =
    "the download went wrong, perhaps for lack of a login ('hf auth login'): download it again, as with 'hf download'";
constexpr char kToUtf8[] = "write it as UTF-8: iconv -f UTF-16 -t UTF-8 FILE > NEW_FILE";
using namespace std::string_view_literals;
constexpr Beginning kBeginnings[] = {
    {"version https://git-lfs"sv, kPointer, kPull},
    {"version https://hawser"sv, kPointer, kPull},
    {"<!doctype"sv, kPage, kAgain},
    {"<html"sv, kPage, kAgain},
    {"<head"sv, kPage, kAgain},
    {"<?xml"sv, kPage, kAgain},
    {"entry not found"sv, kAnswer, kAgain},
    {"repository not found"sv, kAnswer, kAgain},
    {"invalid username or password"sv, kAnswer, kAgain},
    {"invalid credentials"sv, kAnswer, kAgain},
    {"unauthorized"sv, kAnswer, kAgain},
    {"access to model"sv, kAnswer, kAgain},
    {"gguf"sv, "it is a GGUF file, which is llama.cpp's format", kTakeOriginal},
    {"pk\x03\x04"sv, "it is a zip archive, as PyTorch saves weights", kConvert},
    {"\x80\x02"sv, "it is a pickle of Python's, as PyTorch saves weights", kConvert},
    {"\x89hdf"sv, "it is an HDF5 file, as Keras saves weights", kConvert},
    {"\x1f\x8b"sv, "it is compressed", "unpack it with gunzip"},
    {"\xff\xfe"sv, kUtf16, kToUtf8},
    {"\xfe\xff"sv, kUtf16, kToUtf8},
    {"\0\0\0\0\0\0\0\0"sv, "it begins with zeros, as a download that was broken off", "download it again"},
};

// A file that tells what a folder is, by its name, in which one '*' stands for anything.
struct Sign {
  std::string_view name;
  const char* is;
  const char* to_do;
};
constexpr char kGguf[] = "is there, which is GGUF, llama.cpp's format";
constexpr char kTorch[] = "is there, which are weights as PyTorch pickles them";
constexpr char kOwnLayout[] = "is there, which is the layout that Meta and Mistral publish besides";
constexpr char kPartial[] = "is there: the download is not finished";
constexpr char kResume[] = "run the same download again, which goes on with it";
// Folders that are no language model's as a whole.
constexpr Sign kOtherFolders[] = {
    {"model_index.json", "is there: it is a pipeline of diffusers, which makes pictures", "take a language model"},
    {"modules.json", "is there: it is a model of sentence-transformers, which makes embeddings and no text",
     "take a language model"},
};
constexpr Sign kSigns[] = {
    {"*.incomplete", kPartial, kResume},
    {"*.part", kPartial, kResume},
    {"*.partial", kPartial, kResume},
    {"*.crdownload", kPartial, kResume},
    {"*.aria2", kPartial, kResume},
    {"*.gguf", kGguf, kTakeOriginal},
    {"consolidated*.safetensors", kOwnLayout, kTakeOriginal},
    {"consolidated*.pth", kOwnLayout, kTakeOriginal},
    {"params.json", kOwnLayout, kTakeOriginal},
    {"pytorch_model*.bin", kTorch, kConvert},
    {"*.pth", kTorch, kConvert},
    {"*.pt", kTorch, kConvert},
    {"*.ckpt", kTorch, kConvert},
    {"*.nemo", "is there, which is NVIDIA NeMo's format", kTakeOriginal},
    {"*.onnx", "is there, which is ONNX", kTakeOriginal},
    {"tf_model.h5", "is there, which are TensorFlow's weights", kTakeOriginal},
    {"flax_model.msgpack", "is there, which are Flax's weights", kTakeOriginal},
    {"*.mlmodelc", "is there, which is Core ML", kTakeOriginal},
};
// Where config.json is not there.
constexpr Sign kConfigSigns[] = {
    {"*.safetensors", "is there, but no config.json, which says what it is", "download that file, too"},
};
// Where it is.
constexpr Sign kWeightSigns[] = {
    {"model-*-of-*.safetensors", "is there, but no model.safetensors.index.json, which says what is in it",
     "download that file, too"},
    {"*.safetensors", "is there, but no model.safetensors",
     "if it is the whole model, name it model.safetensors; else download what is missing"},
};

bool MatchesSign(std::string_view pattern, std::string_view name) {
  const size_t star = pattern.find('*');
  if (star == std::string_view::npos) return pattern == name;
  if (!name.starts_with(pattern.substr(0, star))) return false;
  name.remove_prefix(star);
  pattern.remove_prefix(star + 1);
  for (size_t from = 0; from <= name.size(); ++from) {
    if (MatchesSign(pattern, name.substr(from))) return true;
  }
  return false;
}

// Whether the text begins with these letters, be they small or capital.
bool BeginsWith(std::string_view text, std::string_view begin) {
  const auto lower = [](char c) { return absl::ascii_tolower(static_cast<unsigned char>(c)); };
  return text.size() >= begin.size() && std::ranges::equal(text.substr(0, begin.size()), begin, {}, lower, lower);
}

bool EndsWith(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && BeginsWith(text.substr(text.size() - end.size()), end);
}

bool IsFolder(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::is_directory(path, ignored);
}

bool IsFile(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(path, ignored);
}

// In order; nothing of a folder that cannot be read.
std::vector<std::string> NamesIn(const std::filesystem::path& dir) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator it(dir, error), end; !error && it != end && names.size() < kNamesMax;
       it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string FirstBytesOf(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::string bytes(kContentBytes, '\0');
  in.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  bytes.resize(static_cast<size_t>(in.gcount()));
  return bytes;
}

std::string Show(const std::filesystem::path& path) { return ShowText(path.string(), 300); }

// The name of a model on the hub that this may be: "org/name" or "name", or the address of its page; empty if not.
std::string HubNameIn(std::string_view given) {
  for (const std::string_view prefix : {"https://", "http://", "hf://"}) {
    if (BeginsWith(given, prefix)) given.remove_prefix(prefix.size());
  }
  for (const std::string_view host : {"www.huggingface.co/", "huggingface.co/", "hf.co/"}) {
    if (BeginsWith(given, host)) given.remove_prefix(host.size());
  }
  if (const size_t rest = given.find("/tree/"); rest != std::string_view::npos) given = given.substr(0, rest);
  while (given.ends_with('/')) given.remove_suffix(1);
  const auto is_part = [](std::string_view part) {
    const auto is_fine = [](char c) {
      return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.';
    };
    return !part.empty() && absl::ascii_isalnum(static_cast<unsigned char>(part[0])) &&
           std::ranges::all_of(part, is_fine);
  };
  const size_t slash = given.find('/');
  const bool fits = slash == std::string_view::npos
                        ? is_part(given)
                        : is_part(given.substr(0, slash)) && is_part(given.substr(slash + 1));
  return fits && given.size() <= kHubNameMax ? std::string(given) : "";
}

std::string GuessOfNothing(const std::string& model_dir) {
  if (model_dir.starts_with('~')) {
    return absl::StrCat("the shell leaves '~' as it is inside quotes: write it outside of them, or $HOME",
                        model_dir.substr(std::min(model_dir.find('/'), model_dir.size())));
  }
  const std::string name = HubNameIn(model_dir);
  if (name.empty()) return "there is no such folder";
  const std::string folder = name.substr(name.find('/') == std::string::npos ? 0 : name.find('/') + 1);
  return absl::StrCat(
      "there is no such folder here, and models are read from local folders alone; if it is the name of "
      "one on the Hugging Face Hub, get it first: hf download ",
      name, " --local-dir ", folder, " (older: huggingface-cli download), then -m ", folder);
}

std::string GuessOfFile(const std::filesystem::path& path) {
  const std::filesystem::path parent = path.has_parent_path() ? path.parent_path() : ".";
  if (IsFile(parent / "config.json")) return absl::StrCat("it is a file; give the folder: -m ", Show(parent));
  const std::string name = path.filename().string();
  for (const std::string_view archive : {".zip", ".tar", ".gz", ".tgz", ".xz", ".zst", ".bz2", ".7z"}) {
    if (EndsWith(name, archive)) return "it is an archive: unpack it, and give the folder";
  }
  const std::string content = GuessContent(FirstBytesOf(path));
  if (!content.empty()) return content;
  if (EndsWith(name, ".gguf")) return absl::StrCat("it is GGUF, llama.cpp's format: ", kTakeOriginal);
  return "it is a file; a model is a folder, with config.json, *.safetensors and a tokenizer";
}

// Guesses what was meant where the folder is one of the hub's cache, or the whole cache.
std::string GuessOfCache(const std::filesystem::path& dir, const std::vector<std::string>& names) {
  std::filesystem::path snapshots = dir / "snapshots";
  if (IsFolder(snapshots)) {
    std::ifstream main(dir / "refs" / "main");
    std::string revision;
    std::getline(main, revision);
    const std::vector<std::string> revisions = NamesIn(snapshots);
    if (std::ranges::find(revisions, revision) == revisions.end()) revision = revisions.empty() ? "" : revisions.back();
    if (revision.empty()) return "it is the hub's cache of a model of which nothing has been downloaded";
    return absl::StrCat("it is the hub's cache of a model, which lies deeper: -m ", Show(snapshots / revision));
  }
  for (const std::string& name : names) {
    if (!name.starts_with("models--")) continue;
    std::string deeper = GuessOfCache(dir / name, {});
    if (!deeper.empty()) return absl::StrCat(ShowText(name), " is there: ", deeper);
  }
  return "";
}

// Guesses the model that lies a folder deeper: of several, which are steps of a training or variants, the last one.
std::string GuessOfSubfolder(const std::filesystem::path& dir, const std::vector<std::string>& names) {
  std::vector<std::string> models;
  for (const std::string& name : names) {
    if (IsFile(dir / name / "config.json")) models.push_back(name);
  }
  if (models.empty()) return "";
  // checkpoint-1000 is behind checkpoint-500.
  std::stable_sort(models.begin(), models.end(),
                   [](const std::string& a, const std::string& b) { return a.size() < b.size(); });
  const std::string one = Show(dir / models.back());
  return models.size() == 1
             ? absl::StrCat("the model lies in a folder of it: -m ", one)
             : absl::StrCat("there are models in ", models.size(), " folders of it: give one, such as -m ", one);
}

std::string GuessOfAdapter(const std::filesystem::path& dir) {
  std::string base;
  const auto text = ReadTextFile((dir / "adapter_config.json").string(), kAdapterBytesMax);
  if (text.ok()) {
    const auto config = ParseJsonObject(*text, "");
    if (config.ok())
      base = config->value("base_model_name_or_path", nlohmann::json()).is_string()
                 ? ShowText(config->at("base_model_name_or_path").get<std::string>())
                 : "";
  }
  return absl::StrCat("it is a LoRA adapter", base.empty() ? "" : " of ", base,
                      ", no model: merge it into its base with Python: from peft import AutoPeftModelForCausalLM as M; "
                      "M.from_pretrained(\"DIR\").merge_and_unload().save_pretrained(\"NEW_DIR\"), and copy the "
                      "tokenizer's files");
}

std::string FindSign(std::span<const Sign> signs, const std::vector<std::string>& names) {
  for (const Sign& sign : signs) {
    for (const std::string& name : names) {
      if (MatchesSign(sign.name, name)) return absl::StrCat(ShowText(name), " ", sign.is, "; ", sign.to_do);
    }
  }
  return "";
}

std::string GuessBySigns(const std::filesystem::path& dir, const std::vector<std::string>& names) {
  for (const std::string& name : NamesIn(dir / ".cache" / "huggingface" / "download")) {
    if (name.ends_with(".incomplete")) return absl::StrCat("its download is not finished: ", kResume);
  }
  return FindSign(kSigns, names);
}

std::string GuessOfOtherFolder(const std::filesystem::path& dir, const std::vector<std::string>& names) {
  if (std::ranges::find(names, "adapter_config.json") != names.end()) return GuessOfAdapter(dir);
  return FindSign(kOtherFolders, names);
}

}  // namespace

std::string GuessContent(std::string_view bytes) {
  if (bytes.empty()) return "it is empty: the download was broken off, perhaps for lack of space; download it again";
  std::string_view text = bytes;
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);  // the mark of UTF-8
  text.remove_prefix(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
  if (bytes.size() >= 4 && bytes[0] == '{' && bytes[1] == 0 && bytes[2] != 0 && bytes[3] == 0) {
    return absl::StrCat(kUtf16, "; ", kToUtf8);
  }
  for (const Beginning& one : kBeginnings) {
    if (BeginsWith(bytes, one.bytes) || BeginsWith(text, one.bytes)) {
      return absl::StrCat(one.is, "; ", one.to_do);
    }
  }
  return "";
}

std::string GuessWhyNoConfig(const std::string& model_dir) {
  struct stat info;
  if (stat(model_dir.c_str(), &info) != 0) {
    if (errno == EACCES) return absl::StrCat("user ", geteuid(), " may not look into a folder above it");
    return GuessOfNothing(model_dir);
  }
  if (S_ISREG(info.st_mode)) return GuessOfFile(model_dir);
  if (!S_ISDIR(info.st_mode)) return "";
  const std::filesystem::path dir(model_dir);
  if (access(model_dir.c_str(), R_OK | X_OK) != 0 ||
      (IsFile(dir / "config.json") && access((dir / "config.json").c_str(), R_OK) != 0)) {
    return absl::StrCat("user ", geteuid(), " may not read it: its owner lets others with chmod -R a+rX ", Show(dir));
  }
  if (IsFile(dir / "config.json")) return "";
  const std::vector<std::string> names = NamesIn(dir);
  if (names.empty()) return "the folder is empty";
  std::string guess = GuessOfCache(dir, names);
  if (guess.empty()) guess = GuessOfOtherFolder(dir, names);
  if (guess.empty()) guess = GuessOfSubfolder(dir, names);
  if (guess.empty()) guess = GuessBySigns(dir, names);
  if (guess.empty()) guess = FindSign(kConfigSigns, names);
  return guess.empty() ? "a model's folder has that file: is this the folder that was meant, and is all of it here?"
                       : guess;
}

std::string GuessWhyNoWeights(const std::string& model_dir) {
  const std::vector<std::string> names = NamesIn(model_dir);
  std::string guess = GuessOfOtherFolder(model_dir, names);
  if (guess.empty()) guess = GuessBySigns(model_dir, names);
  return guess.empty() ? FindSign(kWeightSigns, names) : guess;
}

}  // namespace fastdecode
