#ifndef FASTDECODE_TOOLS_LATENCY_EXPORT_TRACE_WRITER_H_
#define FASTDECODE_TOOLS_LATENCY_EXPORT_TRACE_WRITER_H_

#include <cstdint>
#include <ostream>
#include <string>

namespace fastdecode {

// Chrome trace events as JSON, one line each, as Perfetto and chrome://tracing open them. Times are ns in and us with
// up to three decimals out, from `origin_ns` on. Within a track, callers write in order of time, and slices nest.
// Owns: a buffer of some KiB. Thread: one. Errors are the stream's.
class TraceWriter {
 public:
  // Numbers from 1 on. A thread has its own in all processes; the first of a process has that of the process.
  struct Track {
    int process = 1, thread = 1;
  };

  // `about` becomes "otherData": a JSON object.
  TraceWriter(std::ostream* out, uint64_t origin_ns, const std::string& about);
  // Ends the document.
  void Finish();

  // Tracks are shown in the order of their numbers.
  void NameProcess(int process, const std::string& name);
  void NameThread(Track track, const std::string& name);

  // `name` is ASCII that needs no escaping. `args` are members of a JSON object without its braces, or empty.
  void Slice(Track track, const std::string& name, uint64_t start_ns, uint64_t end_ns, const std::string& args);
  void Instant(Track track, const std::string& name, uint64_t ns, const std::string& args);
  // The same flow goes from its 's' by a 't' to its 'f', each in a slice that spans the moment.
  void Flow(Track track, char phase, uint64_t id, uint64_t ns);
  // Something that begins and ends, apart from all slices.
  void Async(int process, const std::string& name, uint64_t id, uint64_t start_ns, uint64_t end_ns,
             const std::string& args);
  void Counter(int process, const std::string& name, uint64_t ns, int64_t value);

 private:
  // ,"ph":"X","pid":1,"tid":2,"ts":3.000 of a new event.
  void Begin(char phase, Track track, uint64_t ns);
  void Name(const std::string& name);
  void Args(const std::string& args);
  void End();
  void Micros(uint64_t ns);
  void Flush();

  std::ostream* const out_;
  const uint64_t origin_ns_;
  std::string buffer_;
  bool first_ = true;
};

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_LATENCY_EXPORT_TRACE_WRITER_H_
