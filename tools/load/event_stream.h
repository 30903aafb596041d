#ifndef FASTDECODE_TOOLS_LOAD_EVENT_STREAM_H_
#define FASTDECODE_TOOLS_LOAD_EVENT_STREAM_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace fastdecode::load {

// Cuts a text/event-stream into the data of its events, wherever reads cut it. Lines end with \n or \r\n; comments and
// fields that are not `data` are passed over.
// Thread: one. Bounded: an event of at most kEventBytesMax. It allocates only while an event is longer than all before.
class EventReader {
 public:
  static constexpr size_t kEventBytesMax = 16 << 20;

  // Calls on_event(std::string_view) for each event that ends within `bytes`. False: an event is too long.
  template <class OnEvent>
  bool Feed(std::string_view bytes, OnEvent&& on_event) {
    while (!bytes.empty()) {
      const size_t end = bytes.find('\n');
      if (end == std::string_view::npos) return Keep(bytes);
      std::string_view line = bytes.substr(0, end);
      bytes.remove_prefix(end + 1);
      if (!cut_line_.empty()) {
        if (!Keep(line)) return false;
        line = cut_line_;
      }
      if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
      if (line.empty()) {
        if (has_data_) on_event(std::string_view(data_));
        data_.clear();
        has_data_ = false;
      } else if (!TakeLine(line)) {
        return false;
      }
      cut_line_.clear();
    }
    return true;
  }
  // Forgets an event that has begun.
  void Reset();
  // Whether an event has begun.
  bool HasPart() const { return has_data_ || !cut_line_.empty(); }

 private:
  bool Keep(std::string_view part_of_line);
  bool TakeLine(std::string_view line);

  std::string cut_line_;  // the begin of a line, of which a read had no more
  std::string data_;      // the event's data so far
  bool has_data_ = false;
};

// What an answer of /v1/completions says, be it a chunk of a stream or the whole.
struct CompletionChunk {
  bool has_choices = false;  // `choices` is there and not empty
  bool has_error = false;
  std::string text;            // the first choice's, if it is to be kept
  std::string error;           // its message
  int64_t prompt_tokens = -1;  // -1: it does not say
  int64_t output_tokens = -1;
};

// Reads one into `chunk`, whose memory is used again. False: it is no JSON object, and `problem` says why.
bool ReadCompletionChunk(std::string_view json, bool keep_text, CompletionChunk* chunk, std::string* problem);

}  // namespace fastdecode::load

#endif  // FASTDECODE_TOOLS_LOAD_EVENT_STREAM_H_
