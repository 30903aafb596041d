#include "tools/load/event_stream.h"

#include "nlohmann/json.hpp"

namespace fastdecode::load {

void EventReader::Reset() {
  cut_line_.clear();
  data_.clear();
  has_data_ = false;
}

bool EventReader::Keep(std::string_view part_of_line) {
  if (cut_line_.size() + part_of_line.size() > kEventBytesMax) return false;
  cut_line_ += part_of_line;
  return true;
}

bool EventReader::TakeLine(std::string_view line) {
  constexpr std::string_view kData = "data";
  if (line.substr(0, kData.size()) != kData) return true;
  line.remove_prefix(kData.size());
  if (!line.empty() && line.front() != ':') return true;  // another field, whose name begins so
  if (!line.empty()) line.remove_prefix(1);
  if (!line.empty() && line.front() == ' ') line.remove_prefix(1);
  if (data_.size() + line.size() > kEventBytesMax) return false;
  if (has_data_) data_ += '\n';
  data_ += line;
  has_data_ = true;
  return true;
}

namespace {

// Picks a few values out of the events of a JSON parser; the rest is only checked.
class ChunkPicker {
 public:
  using Json = nlohmann::json;

  ChunkPicker(bool keep_text, CompletionChunk* chunk, std::string* problem)
      : keep_text_(keep_text), chunk_(chunk), problem_(problem) {}

  // NOLINTBEGIN(readability-identifier-naming): the parser calls them so.
  bool null() { return Element(); }
  bool boolean(bool) {
    NoteError();
    return Element();
  }
  bool number_integer(Json::number_integer_t value) { return Number(value); }
  bool number_unsigned(Json::number_unsigned_t value) { return Number(static_cast<int64_t>(value)); }
  bool number_float(Json::number_float_t, const std::string&) {
    NoteError();
    return Element();
  }
  bool string(std::string& value) {
    NoteError();
    Element();
    if (InErrorItself() || (InField(Member::kError) && field_ == Field::kMessage)) chunk_->error = value;
    if (keep_text_ && depth_ == 3 && InArray(Member::kChoices) && choices_ == 1 && field_ == Field::kText) {
      chunk_->text += value;
    }
    return true;
  }
  bool binary(Json::binary_t&) { return true; }
  bool start_object(size_t) { return Open(false); }
  bool start_array(size_t) { return Open(true); }
  bool end_object() { return Close(); }
  bool end_array() { return Close(); }
  bool key(std::string& name) {
    if (depth_ == 1) {
      member_ = name == "choices" ? Member::kChoices
                : name == "usage" ? Member::kUsage
                : name == "error" ? Member::kError
                                  : Member::kOther;
    }
    if (depth_ <= 3) {
      field_ = name == "text"                ? Field::kText
               : name == "message"           ? Field::kMessage
               : name == "prompt_tokens"     ? Field::kPromptTokens
               : name == "completion_tokens" ? Field::kOutputTokens
                                             : Field::kOther;
    }
    return true;
  }
  bool parse_error(size_t, const std::string&, const Json::exception& error) {
    *problem_ = error.what();
    return false;
  }
  // NOLINTEND(readability-identifier-naming)

  bool is_object() const { return is_object_; }

 private:
  enum class Member { kOther, kChoices, kUsage, kError };
  enum class Field { kOther, kText, kMessage, kPromptTokens, kOutputTokens };

  bool InErrorItself() const { return depth_ == 1 && is_object_ && member_ == Member::kError; }
  bool InField(Member member) const { return depth_ == 2 && !second_is_array_ && member_ == member; }
  bool InArray(Member member) const { return second_is_array_ && member_ == member; }

  void NoteError() { chunk_->has_error |= InErrorItself(); }
  // A value begins, which may be a choice.
  bool Element() {
    if (depth_ == 2 && InArray(Member::kChoices)) {
      ++choices_;
      chunk_->has_choices = true;
    }
    return true;
  }
  bool Number(int64_t value) {
    NoteError();
    Element();
    if (!InField(Member::kUsage)) return true;
    if (field_ == Field::kPromptTokens) chunk_->prompt_tokens = value;
    if (field_ == Field::kOutputTokens) chunk_->output_tokens = value;
    return true;
  }
  bool Open(bool is_array) {
    NoteError();
    Element();
    if (depth_ == 0) is_object_ = !is_array;
    if (depth_ == 1) second_is_array_ = is_array;
    if (depth_ == 2) field_ = Field::kOther;
    ++depth_;
    return true;
  }
  bool Close() {
    if (--depth_ == 1) second_is_array_ = false;
    return true;
  }

  const bool keep_text_;
  CompletionChunk* const chunk_;
  std::string* const problem_;
  int depth_ = 0;  // objects and arrays that are open
  int choices_ = 0;
  bool is_object_ = false;        // the whole is one
  bool second_is_array_ = false;  // what is open at depth 2
  Member member_ = Member::kOther;
  Field field_ = Field::kOther;
};

}  // namespace

bool ReadCompletionChunk(std::string_view json, bool keep_text, CompletionChunk* chunk, std::string* problem) {
  chunk->has_choices = chunk->has_error = false;
  chunk->text.clear();
  chunk->error.clear();
  chunk->prompt_tokens = chunk->output_tokens = -1;
  ChunkPicker picker(keep_text, chunk, problem);
  if (!nlohmann::json::sax_parse(json.begin(), json.end(), &picker)) return false;
  if (!picker.is_object()) *problem = "it is no JSON object";
  return picker.is_object();
}

}  // namespace fastdecode::load
