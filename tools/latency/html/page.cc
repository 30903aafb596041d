#include "tools/latency/html/page.h"

#include "tools/latency/html/assets.h"
#include "tools/latency/html/markup.h"

namespace fastdecode {

namespace {

// A browser that keeps to it loads nothing, whatever the texts in the document should contrive.
constexpr char kPolicy[] = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:";

}  // namespace

void WritePage(const std::string& title, const std::string& body, const std::string& footer, std::ostream& out) {
  out << "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      << "<meta http-equiv=\"Content-Security-Policy\" content=\"" << kPolicy << "\">\n"
      << "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      << "<link rel=\"icon\" href=\"data:,\">\n<title>" << Escaped(title) << "</title>\n"
      << "<style>\n"
      << kReportCss << "</style>\n</head>\n<body>\n"
      << body << "<footer>" << Escaped(footer) << "</footer>\n<script>\n"
      << kReportJs << "</script>\n"
      << "</body>\n</html>\n";
}

}  // namespace fastdecode
