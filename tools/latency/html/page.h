#ifndef FASTDECODE_TOOLS_LATENCY_HTML_PAGE_H_
#define FASTDECODE_TOOLS_LATENCY_HTML_PAGE_H_

#include <ostream>
#include <string>

namespace fastdecode {

// One HTML document that needs nothing else and asks nobody for anything, light and dark, with the style and script of
// reports. `body` is HTML; `title` and `footer` are text. Errors are the stream's.
void WritePage(const std::string& title, const std::string& body, const std::string& footer, std::ostream& out);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_LATENCY_HTML_PAGE_H_
