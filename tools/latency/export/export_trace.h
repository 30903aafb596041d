#ifndef FASTDECODE_TOOLS_LATENCY_EXPORT_EXPORT_TRACE_H_
#define FASTDECODE_TOOLS_LATENCY_EXPORT_EXPORT_TRACE_H_

#include <ostream>

#include "tools/latency/analysis/timeline.h"
#include "tools/latency/recording.h"

namespace fastdecode {

// The timeline as Chrome trace events (JSON in object form), which ui.perfetto.dev opens:
//   process "engine": what the pipeline thread did, one track a micro-batch (its steps, what each was at, and the parts
//     of its stages), tokens, rows in flight, and every hop from when it was posted until its reply was seen
//   process "home 1 (...)": its leader's work on hops, taken apart
//   arrows from the engine's posting to the home's work and back
// All on the engine's clock: a home's slices lie where its clock puts them, right within the "placed_within_us" of
// their arguments; null: its clock is not known, and they lie somewhere between the posting and the reply.
//
// Holds one track's slices in memory, 24 bytes each, and no document. Some 330 bytes of JSON an event of the recording.
// Errors are the stream's.
void WriteTrace(const Recording& recording, const Timeline& timeline, std::ostream& out);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_LATENCY_EXPORT_EXPORT_TRACE_H_
