#ifndef FASTDECODE_TOOLS_SERVE_OPENAI_JSON_TEXT_H_
#define FASTDECODE_TOOLS_SERVE_OPENAI_JSON_TEXT_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace fastdecode::serve {

// JSON is written by appending to a string, so that a chunk of a stream allocates nothing once its buffer has grown.
// Thread: any.

// Appends `text` as a JSON string with its quotes. Control characters and U+0085, U+2028, U+2029, at which some clients
// cut lines, are escaped; bytes that are not UTF-8 become U+FFFD.
void AppendJsonString(std::string_view text, std::string* out);
void AppendJsonInteger(int64_t value, std::string* out);
// The shortest decimal that reads back as the same float, never in the form of an integer. JSON has no infinities,
// which are 9999.0 and -9999.0, as in other servers; NaN is null.
void AppendJsonFloat(float value, std::string* out);

}  // namespace fastdecode::serve

#endif  // FASTDECODE_TOOLS_SERVE_OPENAI_JSON_TEXT_H_
