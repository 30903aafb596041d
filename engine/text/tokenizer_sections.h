#ifndef FASTDECODE_ENGINE_TEXT_TOKENIZER_SECTIONS_H_
#define FASTDECODE_ENGINE_TEXT_TOKENIZER_SECTIONS_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/model/json_fields.h"
#include "engine/text/tokenizer_spec.h"

namespace fastdecode {

// What the readers of tokenizer.json's sections share. The first error is kept; what is read after it is of no use.
//
// Owns: nothing; the document outlives it. Thread: one.
class TokenizerSections {
 public:
  using json = nlohmann::json;

  // One step of a section: of a Sequence, or the only one where there is no Sequence.
  struct Part {
    const json* value;
    std::string field;  // such as "pre_tokenizer.pretokenizers[1]"
    std::string type;
  };

  TokenizerSections(const json& root, std::string file) : root_(root), file_(std::move(file)) {}

  const json& root() const { return root_; }
  const absl::Status& error() const { return error_; }
  bool ok() const { return error_.ok(); }

  // Keep an error: the file is broken, or has what is not built.
  void Fail(const std::string& message);
  void Refuse(const std::string& message);

  JsonFields Fields(const json& object, const std::string& field);
  JsonFields Root() { return JsonFields(root_, file_, "", &error_); }
  static bool RequiredBool(JsonFields& fields, const char* name);
  // What `name` holds, if it is an array or object as asked for; null and an error if not.
  const json* Required(JsonFields& fields, const char* name, json::value_t type);
  // A token id, or -1 and an error.
  int32_t TokenId(const json& value, const std::string& field);
  // The parts of a section that is null, one step, or a (nested) Sequence of steps.
  std::vector<Part> Parts(const char* section, const char* list_name);

 private:
  void Flatten(const json* value, const std::string& field, const char* list_name, std::vector<Part>* parts);

  const json& root_;
  const std::string file_;
  absl::Status error_;
};

// A string as errors show it.
std::string QuoteJson(const std::string& text);

// Read a section each into *spec.
void ReadNormalizer(TokenizerSections* sections, TokenizerSpec* spec);
void ReadPreTokenizer(TokenizerSections* sections, TokenizerSpec* spec);
void ReadDecoder(TokenizerSections* sections, TokenizerSpec* spec);

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_TEXT_TOKENIZER_SECTIONS_H_
