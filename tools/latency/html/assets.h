#ifndef FASTDECODE_TOOLS_LATENCY_HTML_ASSETS_H_
#define FASTDECODE_TOOLS_LATENCY_HTML_ASSETS_H_

namespace fastdecode {

// report.css and report.js, as the build found them.
extern const char* const kReportCss;
extern const char* const kReportJs;

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_LATENCY_HTML_ASSETS_H_
