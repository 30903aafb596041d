#ifndef FASTDECODE_TESTS_TOOLS_LATENCY_EVENT_MAKER_H_
#define FASTDECODE_TESTS_TOOLS_LATENCY_EVENT_MAKER_H_

#include <cstdint>
#include <utility>
#include <vector>

#include <fastdecode/fastdecode.h>
#include "tools/latency/recording.h"

namespace fastdecode {

// Events of steps, written one after the other as an engine would, for tests that know every time in them.
class EventMaker {
 public:
  // The event is good until the next Add().
  fd_record_event& Add(fd_record_kind kind, int micro_batch, uint32_t step, uint64_t start_ns, uint64_t end_ns) {
    fd_record_event event = {};
    event.kind = static_cast<uint8_t>(kind);
    event.micro_batch = static_cast<uint8_t>(micro_batch);
    event.step = step;
    event.start_ns = start_ns;
    event.end_ns = end_ns;
    event.home = -1;
    events.push_back(event);
    return events.back();
  }
  void Compose(int micro_batch, uint32_t step, uint64_t start_ns, uint64_t end_ns, uint32_t sequences, uint32_t rows) {
    fd_record_event& event = Add(FD_RECORD_COMPOSE, micro_batch, step, start_ns, end_ns);
    event.count = sequences;
    event.rows = rows;
  }
  void Share(int micro_batch, uint32_t step, uint64_t at_ns, int home, uint64_t kv_bytes) {
    fd_record_event& event = Add(FD_RECORD_SHARE, micro_batch, step, at_ns, at_ns);
    event.home = static_cast<int16_t>(home);
    event.rows = 1;
    event.bytes = kv_bytes;
  }
  void Stage(int micro_batch, uint32_t step, int stage, uint64_t start_ns, uint64_t end_ns) {
    Add(FD_RECORD_STAGE, micro_batch, step, start_ns, end_ns).layer = static_cast<uint16_t>(stage);
  }
  void Part(int micro_batch, uint32_t step, fd_stage_part part, int layer, uint64_t start_ns, uint64_t end_ns) {
    fd_record_event& event = Add(FD_RECORD_STAGE_PART, micro_batch, step, start_ns, end_ns);
    event.part = static_cast<uint16_t>(part);
    event.layer = static_cast<uint16_t>(layer);
  }
  void Post(int micro_batch, uint32_t step, int layer, uint64_t start_ns, uint64_t end_ns, uint32_t homes) {
    fd_record_event& event = Add(FD_RECORD_POST, micro_batch, step, start_ns, end_ns);
    event.layer = static_cast<uint16_t>(layer);
    event.count = homes;
  }
  // The home's clock is the engine's, and its work ends `after_ns` before the reply is seen.
  fd_record_event& Hop(int micro_batch, uint32_t step, int layer, int home, uint64_t posted_ns, uint64_t seen_ns,
                       uint64_t after_ns) {
    fd_record_event& event = Add(FD_RECORD_HOP, micro_batch, step, posted_ns, seen_ns);
    event.layer = static_cast<uint16_t>(layer);
    event.home = static_cast<int16_t>(home);
    event.home_end_ns = seen_ns - after_ns;
    event.bytes = 4096;
    event.polled_ns = seen_ns - 1;
    event.idle_ns = 1;
    return event;
  }
  void Finish(int micro_batch, uint32_t step, uint64_t start_ns, uint64_t end_ns, uint32_t tokens) {
    Add(FD_RECORD_FINISH, micro_batch, step, start_ns, end_ns).count = tokens;
  }
  void Token(int micro_batch, uint32_t step, uint64_t at_ns, uint64_t id, uint32_t index) {
    fd_record_event& event = Add(FD_RECORD_TOKEN, micro_batch, step, at_ns, at_ns);
    event.id = id;
    event.count = index;
  }

  // A whole step of micro-batch 0, of one layer, from `at_ns` until 2000 ns later. Home 1 is posted last, and comes
  // back last.
  void TwoHomeStep(uint32_t step, uint64_t at_ns) {
    Share(0, step, at_ns, 0, 1000);
    Share(0, step, at_ns, 1, 3000);
    Compose(0, step, at_ns, at_ns + 50, 2, 2);
    Add(FD_RECORD_ROSTERS, 0, step, at_ns + 50, at_ns + 80);
    Part(0, step, FD_STAGE_REST, 0, at_ns + 90, at_ns + 150);
    Part(0, step, FD_STAGE_QKV, 0, at_ns + 150, at_ns + 280);
    Stage(0, step, 0, at_ns + 90, at_ns + 290);     // 10 after the rosters: residual
    Post(0, step, 0, at_ns + 295, at_ns + 345, 2);  // 5: residual
    Hop(0, step, 0, 0, at_ns + 300, at_ns + 800, 20).attend_ns = 460;
    // There 30, prepare 100, append 40, attend 500, merge 60, team 70, back 20.
    fd_record_event& far = Hop(0, step, 0, 1, at_ns + 320, at_ns + 1140, 20);
    far.prepare_ns = 100;
    far.append_ns = 40;
    far.attend_ns = 500;
    far.merge_ns = 60;
    far.wait_ns = 70;
    Part(0, step, FD_STAGE_O, 0, at_ns + 1240, at_ns + 1400);
    Part(0, step, FD_STAGE_LOGITS, 1, at_ns + 1400, at_ns + 1880);
    Stage(0, step, 1, at_ns + 1240, at_ns + 1900);  // 100 after the reply: pickup
    Finish(0, step, at_ns + 1900, at_ns + 2000, 2);
    Token(0, step, at_ns + 2000, 7, step);
    Token(0, step, at_ns + 2000, 8, step);
  }

  std::vector<fd_record_event> events;
};

inline Recording MakeRecording(std::vector<fd_record_event> events, int layers) {
  Recording recording;
  recording.engine = {{"layers", layers}, {"micro_batches", 2}};
  recording.events = std::move(events);
  return recording;
}

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_TOOLS_LATENCY_EVENT_MAKER_H_
