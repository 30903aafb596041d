#ifndef FASTDECODE_TESTS_ENGINE_END_TO_END_OWN_ENGINE_FIXTURE_H_
#define FASTDECODE_TESTS_ENGINE_END_TO_END_OWN_ENGINE_FIXTURE_H_

#include <memory>
#include <utility>

#include "engine/start/engine.h"
#include "tests/engine/end_to_end/interface_fixture.h"

namespace fastdecode {

// Has an engine of its own classes, whose answers depend on no other request.
class OwnEngineTest : public InterfaceTest {
 protected:
  // In place of the one before, which has ended then.
  void Start(const OptionList& list) {
    engine_.reset();
    fastdecode::Options options;
    for (const auto& [name, value] :
         Options() + OptionList{{"batch-invariant", "true"}, {"hop-timeout-ms", "60000"}} + list) {
      ASSERT_TRUE(SetOption(options, name, value).ok()) << name;
    }
    absl::StatusOr<std::unique_ptr<Engine>> engine = Engine::Create(options);
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
  }

  std::unique_ptr<Engine> engine_;
};

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_ENGINE_END_TO_END_OWN_ENGINE_FIXTURE_H_
