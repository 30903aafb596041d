#ifndef FASTDECODE_ENGINE_API_TO_EVENT_H_
#define FASTDECODE_ENGINE_API_TO_EVENT_H_

#include <fastdecode/fastdecode.h>

#include "engine/request/request_desk.h"

namespace fastdecode {

// The public form of an event. It points into the request and the event, and lives as long as they do; struct_size is
// left to whoever hands it out.
fd_event ToEvent(const TakenEvent& taken);

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_API_TO_EVENT_H_
