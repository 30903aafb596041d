#ifndef FASTDECODE_ENGINE_PIPELINE_HOME_KEEPER_H_
#define FASTDECODE_ENGINE_PIPELINE_HOME_KEEPER_H_

#include <cstdint>
#include <string>

namespace fastdecode {

// What the desk asks of whoever keeps the homes. Called from the desk thread, seldom.
class HomeKeeper {
 public:
  virtual ~HomeKeeper() = default;
  // The home has said that its worker ends soon: it gets no new sequences.
  virtual void OnHomeDraining(int home) = 0;
  // The pipeline no longer refers to this home's link. `hops_posted`: to the home, ever. `paused`: the sequences that
  // lost it, which are computed again.
  virtual void OnHomeLost(int home, uint64_t hops_posted, uint32_t paused) = 0;
  // "home 1 (unix:/run/w.sock, home 0)".
  virtual std::string Name(int home) = 0;
  // Why no living home can hold so many tokens of one sequence: which homes were lost, or what the largest one holds.
  virtual std::string DescribeNoRoom(uint32_t tokens) = 0;
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_PIPELINE_HOME_KEEPER_H_
