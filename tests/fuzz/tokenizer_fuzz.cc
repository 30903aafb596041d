#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/text/byte_alphabet.h"
#include "engine/text/stream_detokenizer.h"
#include "engine/text/tokenizer.h"
#include "engine/text/utf8.h"
#include "numa/check.h"
#include "tests/fuzz/fuzz_target.h"

namespace fastdecode {

using nlohmann::json;

namespace {

std::vector<std::string> Segments(const std::string& input) {
  std::vector<std::string> segments(1);
  for (const char c : input) {
    if (c == '\0') {
      segments.emplace_back();
    } else {
      segments.back() += c;
    }
  }
  return segments;
}

}  // namespace

// The input, with zero bytes between: tokenizer.json's text, tokenizer_config.json's, a text to encode,
// special_tokens_map.json's, added_tokens.json's, config.json's, and merges.txt's. With the last one, the first is
// vocab.json's. What is empty is not there.
bool FuzzOne(const std::string& input) {
  std::vector<std::string> segments = Segments(input);
  const bool has_text = segments.size() > 2;
  segments.resize(7);
  TokenizerFiles files = {.dir = "DIR"};
  const std::pair<size_t, std::optional<std::string>*> wanted[] = {{1, &files.tokenizer_config_json},
                                                                   {3, &files.special_tokens_map_json},
                                                                   {4, &files.added_tokens_json},
                                                                   {5, &files.config_json},
                                                                   {6, &files.merges_txt}};
  for (const auto& [i, file] : wanted) {
    if (!segments[i].empty()) *file = segments[i];
  }
  (files.merges_txt.has_value() ? files.vocab_json : files.tokenizer_json) = segments[0];
  const std::string text = has_text ? segments[2] : "it's 12 \xC3\xA9\xFF<x>";
  const auto tokenizer = Tokenizer::Parse(files);
  if (!tokenizer.ok()) {
    const std::string error(tokenizer.status().message());
    const auto names = [&error](const char* file) { return error.starts_with(std::string("DIR/") + file); };
    FD_CHECK(names("tokenizer.json: ") || names("tokenizer_config.json: ") || names("special_tokens_map.json: ") ||
                 names("added_tokens.json: ") || names("vocab.json: ") || names("vocab.json, merges.txt: "),
             "an error names the file first");
    return false;
  }
  const std::vector<int32_t> ids = (*tokenizer)->Encode(text, true);
  StreamDetokenizer stream(tokenizer->get(), false);
  std::string streamed;
  for (const int32_t id : ids) {
    FD_CHECK(id >= 0 && id < (*tokenizer)->vocab_size(), "ids are in the vocabulary");
    const std::string piece = stream.Push(id);
    FD_CHECK(IsValidUtf8(piece), "a stream never gives half a character");
    streamed += piece;
  }
  streamed += stream.Finish();
  FD_CHECK(streamed == (*tokenizer)->Decode(ids, false), "a stream gives what decoding at once does");
  const Tokenizer::Part parts[] = {{text, true, {}}, {text, false, {}}, {"", true, ids}};
  FD_CHECK((*tokenizer)->EncodeParts(parts, false).size() >= ids.size() - std::min(ids.size(), size_t{2}),
           "ids in parts stay");
  for (const auto& id : {(*tokenizer)->bos_id(), (*tokenizer)->eos_id()}) {
    FD_CHECK(!id.has_value() || (*id >= 0 && *id < (*tokenizer)->vocab_size()), "bos and eos are tokens");
  }
  return true;
}

namespace {

json SeedDocument() {
  json vocab = json::object();
  for (int byte = 0; byte < 256; ++byte) vocab[ByteLevelCharacter(static_cast<uint8_t>(byte))] = byte;
  vocab["ab"] = 256;
  vocab["abc"] = 257;
  return {{"added_tokens", json::array()},
          {"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"use_regex", true}}},
          {"post_processor", nullptr},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", {"a b", "ab c"}}}}};
}

json SeedWithAllSections() {
  json document = SeedDocument();
  document["added_tokens"] = json::parse(
      R"([{"id":258,"content":"<s>","single_word":false,"lstrip":true,"rstrip":true,"normalized":false,
           "special":true},
          {"id":259,"content":"<x>","single_word":true,"lstrip":false,"rstrip":false,"normalized":true,
           "special":false}])");
  document["normalizer"] = {{"type", "NFC"}};
  document["pre_tokenizer"] = json::parse(
      R"({"type":"Sequence","pretokenizers":[
          {"type":"Split","pattern":{"Regex":"(?i:'s|'t)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|\\s+(?!\\S)|\\w"},
           "behavior":"Isolated","invert":false},
          {"type":"Split","pattern":{"String":"-"},"behavior":"MergedWithNext","invert":true},
          {"type":"Digits","individual_digits":true},
          {"type":"ByteLevel","add_prefix_space":false,"use_regex":false}]})");
  document["post_processor"] = json::parse(
      R"({"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>"}},{"Sequence":{"id":"A"}}],
          "special_tokens":{"<s>":{"ids":[258]}}})");
  document["model"]["ignore_merges"] = true;
  document["model"]["merges"] = json::parse(R"([["a","b"],["ab","c"]])");
  return document;
}

// This one is like Llama 2's, with every step that a byte-level tokenizer has not.
json SeedWithByteFallback() {
  json document = SeedWithAllSections();
  json vocab = json::object();
  for (int byte = 0; byte < 256; ++byte) vocab[ByteFallbackToken(static_cast<uint8_t>(byte))] = byte;
  vocab["\xE2\x96\x81"] = 256;
  vocab["a"] = 257;
  vocab["b"] = 258;
  vocab
      ["\xE2\x96\x81"
       "a"] = 259;
  vocab["<unk>"] = 260;
  document["model"] = {{"type", "BPE"},    {"byte_fallback", true},
                       {"fuse_unk", true}, {"unk_token", "<unk>"},
                       {"vocab", vocab},   {"merges", json::parse("[[\"\xE2\x96\x81\",\"a\"]]")}};
  document["added_tokens"][0]["id"] = 261;
  document["added_tokens"][1]["id"] = 262;
  document["normalizer"] = json::parse(
      R"({"type":"Sequence","normalizers":[
          {"type":"NFKC"},{"type":"Lowercase"},{"type":"StripAccents"},{"type":"Strip","strip_left":false,"strip_right":true},
          {"type":"Prepend","prepend":"_"},{"type":"Replace","pattern":{"String":"  "},"content":" "},
          {"type":"Replace","pattern":{"Regex":"\\bx[a-z&&[^b]]"},"content":""}]})");
  document["pre_tokenizer"] = json::parse(
      R"({"type":"Sequence","pretokenizers":[{"type":"Punctuation","behavior":"Contiguous"},{"type":"WhitespaceSplit"},
          {"type":"Metaspace","replacement":"\u2581","prepend_scheme":"first","split":true}]})");
  document["decoder"] = json::parse(
      R"({"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"\u2581"},"content":" "},
          {"type":"ByteFallback"},{"type":"Metaspace","replacement":"_","prepend_scheme":"always"},{"type":"Fuse"},
          {"type":"Strip","content":" ","start":1,"stop":1}]})");
  document["post_processor"] = json::parse(R"({"type":"RobertaProcessing","cls":["<s>",261],"sep":["<x>",262]})");
  return document;
}

}  // namespace

std::vector<std::string> FuzzSeeds() {
  const std::string zero(1, '\0');
  return {SeedDocument().dump(),
          SeedWithAllSections().dump(),
          SeedWithAllSections().dump() + zero + R"({"bos_token":"<s>","eos_token":{"content":"<x>"}})" + zero +
              "abc <s> e\xCC\x81 \xFF 1234 <x>",
          SeedWithByteFallback().dump() + zero +
              R"({"eos_token":"<end>","additional_special_tokens":["<more>",{"content":"<s>"}],"added_tokens_decoder":
                  {"263":{"content":"<end>","lstrip":true},"261":{"content":"<s>","special":true}}})" +
              zero + "ab  <s> e\xCC\x81 \xFF\xE2\x82\xAC <x><end> a",
          SeedDocument().dump() + zero + R"({"zz_token":"<z>","aa_token":{"__type":"AddedToken","content":"<a>"},
              "extra_special_tokens":{"q_token":"<q>"},"additional_special_tokens":["<m>"],"bos_token":null})" +
              zero + "<z><a>b <q><m>" + zero + R"({"bos_token":{"content":"<b>","lstrip":true},"eos_token":null,
              "extra_special_tokens":[{"content":"<e>"},"<m>"],"aa_token":null})" +
              zero + R"({"<new>":258,"<z>":259})" + zero + R"({"model_type":"llama"})",
          SeedDocument()["model"]["vocab"].dump() + zero + R"({"tokenizer_class":"Qwen2Tokenizer","add_bos_token":true,
              "add_prefix_space":true,"bos_token":"abc"})" +
              zero + "abc ab" + zero + zero + R"({"<|endoftext|>":258})" + zero + R"({"model_type":"qwen2"})" + zero +
              "#version: 0.2\na b\nab c\n"};
}

}  // namespace fastdecode
