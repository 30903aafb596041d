#ifndef FASTDECODE_ENGINE_RPART_LINK_WAKER_H_
#define FASTDECODE_ENGINE_RPART_LINK_WAKER_H_

#include <atomic>
#include <cstdint>
#include <string>

#include "numa/parker.h"
#include "numa/pinned_thread.h"
#include "rdma/link.h"

namespace fastdecode {

// Sleeps on one link in the place of a leader that has several, and rings the leader. Each link has its own way to
// sleep (a futex word, a descriptor), and none waits for two of them; so each link of such a home has a waker, and the
// leader sleeps on a word of its own that all of them ring, and so does whoever brings it a new peer.
//
//   leader                                  waker
//     Watch() each waker                      link.Arm()
//     parker.Arm()                            ring the leader: poll once more
//     poll all links once more                link.Sleep()
//     parker.Sleep(), then poll               ring the leader: poll
//
// No wake-up is lost: a hop sent before link.Arm() is seen by the poll that the waker's first ring asks for, one sent
// after it ends link.Sleep(), and the second ring follows. Both rings are read-modify-writes of the leader's word,
// ordered against its Arm (numa/parker.h). It costs a second futex wake-up at the start of a busy period, nothing
// while the home is busy, and about two a second and peer while all is idle.
//
// Owns: a thread, asleep but for microseconds. Thread: Watch by the leader; the rest by the control thread. The link's
// Arm, Disarm and Sleep run on the waker's thread, and on no other, while the leader polls the link.
class LinkWaker {
 public:
  // A leader that sleeps looks around this often even if nobody rings.
  static constexpr uint64_t kSleepNsMax = 1'000'000'000;

  // `link` and `leader`, the word that the leader sleeps on, outlive the waker. Throws as PinnedThread does.
  LinkWaker(const std::string& name, HomeLink* link, ParkWord* leader);
  // REQUIRES: the link is lost (a live one could sleep on).
  ~LinkWaker();

  LinkWaker(const LinkWaker&) = delete;
  LinkWaker& operator=(const LinkWaker&) = delete;

  // From now on, until the leader has been rung twice, a ring or the loss of the link rings the leader.
  void Watch();

 private:
  void Run();
  void AwaitRequest();

  // Constant after construction.
  HomeLink* const link_;
  ParkWord* const leader_;

  ParkWord own_word_;                  // the waker sleeps on it while it is not asked to watch
  std::atomic<bool> watching_{false};  // set by the leader, cleared by the waker
  std::atomic<bool> stopping_{false};
  PinnedThread thread_;  // last: it uses all of the above
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_RPART_LINK_WAKER_H_
