#include "tools/latency/export/trace_writer.h"

#include "nlohmann/json.hpp"

namespace fastdecode {

namespace {

constexpr size_t kBufferBytes = 256 << 10;

std::string QuotedJson(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

TraceWriter::TraceWriter(std::ostream* out, uint64_t origin_ns, const std::string& about)
    : out_(out), origin_ns_(origin_ns) {
  buffer_ = "{\"displayTimeUnit\":\"ns\",\"otherData\":" + about + ",\"traceEvents\":[";
}

void TraceWriter::Finish() {
  buffer_ += "\n]}\n";
  Flush();
  out_->flush();
}

void TraceWriter::NameProcess(int process, const std::string& name) {
  Begin('M', {process, process}, origin_ns_);
  Name("process_name");
  Args("\"name\":" + QuotedJson(name));
  End();
  Begin('M', {process, process}, origin_ns_);
  Name("process_sort_index");
  Args("\"sort_index\":" + std::to_string(process));
  End();
}

void TraceWriter::NameThread(Track track, const std::string& name) {
  Begin('M', track, origin_ns_);
  Name("thread_name");
  Args("\"name\":" + QuotedJson(name));
  End();
  Begin('M', track, origin_ns_);
  Name("thread_sort_index");
  Args("\"sort_index\":" + std::to_string(track.thread));
  End();
}

void TraceWriter::Slice(Track track, const std::string& name, uint64_t start_ns, uint64_t end_ns,
                        const std::string& args) {
  Begin('X', track, start_ns);
  buffer_ += ",\"dur\":";
  Micros(end_ns - start_ns);
  Name(name);
  Args(args);
  End();
}

void TraceWriter::Instant(Track track, const std::string& name, uint64_t ns, const std::string& args) {
  Begin('i', track, ns);
  buffer_ += ",\"s\":\"t\"";
  Name(name);
  Args(args);
  End();
}

void TraceWriter::Flow(Track track, char phase, uint64_t id, uint64_t ns) {
  Begin(phase, track, ns);
  if (phase == 'f') buffer_ += ",\"bp\":\"e\"";
  buffer_ += ",\"cat\":\"hop\",\"id\":" + std::to_string(id);
  Name("hop");
  End();
}

void TraceWriter::Async(int process, const std::string& name, uint64_t id, uint64_t start_ns, uint64_t end_ns,
                        const std::string& args) {
  for (const bool begin : {true, false}) {
    Begin(begin ? 'b' : 'e', {process, process}, begin ? start_ns : end_ns);
    buffer_ += ",\"cat\":\"hop\",\"id\":" + std::to_string(id);
    Name(name);
    if (begin) Args(args);
    End();
  }
}

void TraceWriter::Counter(int process, const std::string& name, uint64_t ns, int64_t value) {
  Begin('C', {process, process}, ns);
  Name(name);
  Args("\"value\":" + std::to_string(value));
  End();
}

void TraceWriter::Begin(char phase, Track track, uint64_t ns) {
  buffer_ += first_ ? "\n{\"ph\":\"" : ",\n{\"ph\":\"";
  first_ = false;
  buffer_ += phase;
  buffer_ += "\",\"pid\":" + std::to_string(track.process) + ",\"tid\":" + std::to_string(track.thread) + ",\"ts\":";
  Micros(ns - origin_ns_);
}

void TraceWriter::Name(const std::string& name) {
  buffer_ += ",\"name\":\"";
  buffer_ += name;
  buffer_ += '"';
}

void TraceWriter::Args(const std::string& args) {
  if (args.empty()) return;
  buffer_ += ",\"args\":{";
  buffer_ += args;
  buffer_ += '}';
}

void TraceWriter::End() {
  buffer_ += '}';
  if (buffer_.size() >= kBufferBytes) Flush();
}

void TraceWriter::Micros(uint64_t ns) {
  buffer_ += std::to_string(ns / 1000);
  const uint64_t rest = ns % 1000;
  if (rest == 0) return;
  buffer_ += {'.', static_cast<char>('0' + rest / 100), static_cast<char>('0' + rest / 10 % 10),
              static_cast<char>('0' + rest % 10)};
}

void TraceWriter::Flush() {
  out_->write(buffer_.data(), static_cast<std::streamsize>(buffer_.size()));
  buffer_.clear();
}

}  // namespace fastdecode
