#include "tools/latency/result.h"

namespace fastdecode {

const char* PlaceName(Place place) {
  switch (place) {
    case Place::kBoundary: return "boundary";
    case Place::kScheduler: return "scheduler";
    case Place::kCompose: return "compose";
    case Place::kStage: return "S-Part";
    case Place::kPost: return "post";
    case Place::kWire: return "wire";
    case Place::kQueue: return "home queue";
    case Place::kPrepare: return "home prepare";
    case Place::kAppend: return "home append";
    case Place::kAttend: return "home attend";
    case Place::kMerge: return "home merge";
    case Place::kTeam: return "home team";
    case Place::kPickup: return "pickup";
    case Place::kFinish: return "finish";
  }
  return "?";
}

void NoteCache(Achieved* achieved) {
  if (achieved->possible > 0 && achieved->achieved > achieved->possible) {
    achieved->note = "more than DRAM: it comes from the cache";
  }
}

}  // namespace fastdecode
