#include "tools/load/arrivals_flag.h"

#include <string>

namespace fastdecode::load {

CLI::Option* AddArrivals(CLI::App* command, Arrivals* arrivals) {
  const auto take = [arrivals](const std::string& text) { ParseArrivals(text, arrivals); };
  const auto check = [](const std::string& text) {
    Arrivals ignored;
    return ParseArrivals(text, &ignored);
  };
  return command
      ->add_option_function<std::string>("--arrivals", take,
                                         "open loop: poisson, constant, gamma:SHAPE or on-off:ON_S:OFF_S")
      ->check(check)
      ->type_name("HOW")
      ->default_str("poisson");
}

}  // namespace fastdecode::load
