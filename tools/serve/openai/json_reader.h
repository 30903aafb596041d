#ifndef FASTDECODE_TOOLS_SERVE_OPENAI_JSON_READER_H_
#define FASTDECODE_TOOLS_SERVE_OPENAI_JSON_READER_H_

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "nlohmann/json.hpp"

namespace fastdecode::serve {

// Nesting beyond this is refused while it is read, so that no request takes the stack.
inline constexpr size_t kJsonDepthMax = 64;

// The body of a request: its values, and of members that are lists or objects the text, too, in which keys have the
// order and numbers the form that the client gave them. Lends: the body.
struct JsonBody {
  nlohmann::json object;
  std::map<std::string, std::string_view, std::less<>> texts;
};

// Reads the body of a request, which must be one JSON object of valid UTF-8. Throws ApiError that says where (line and
// column) and what is wrong. Of a key that comes twice the last value counts, as in other servers.
JsonBody ReadJsonBody(std::string_view body);
nlohmann::json ReadJsonObject(std::string_view body);  // the values alone

}  // namespace fastdecode::serve

#endif  // FASTDECODE_TOOLS_SERVE_OPENAI_JSON_READER_H_
