#include "rdma/endpoint.h"

#include <gtest/gtest.h>

namespace fastdecode {
namespace {

TEST(EndpointTest, ParsesAList) {
  const auto endpoints = ParseEndpoints("--homes", "local:2,unix:/run/a.sock,unix:b");
  ASSERT_TRUE(endpoints.ok()) << endpoints.status();
  const std::vector<Endpoint> expected = {
      {Endpoint::Kind::kLocal, 2, ""}, {Endpoint::Kind::kUnix, 0, "/run/a.sock"}, {Endpoint::Kind::kUnix, 0, "b"}};
  EXPECT_EQ(*endpoints, expected);
  EXPECT_EQ(*ParseEndpoint("--homes", "local"), Endpoint());
}

TEST(EndpointTest, ErrorsNameOptionAndValue) {
  const std::pair<std::string, std::string> cases[] = {
      {"", "--homes: '': is none of local, local:N and unix:PATH"},
      {"locale", "--homes: 'locale': is none of local, local:N and unix:PATH"},
      {"local:0", "--homes: 'local:0': local:N takes a number of homes from 1 to 64"},
      {"local:65", "--homes: 'local:65': local:N takes a number of homes from 1 to 64"},
      {"local:x", "--homes: 'local:x': local:N takes a number of homes from 1 to 64"},
      {"unix:", "--homes: 'unix:': unix:: the path of a socket has 1 to 107 bytes, this one has 0"},
      {"local,local:2", "--homes: 'local:2': names the same homes twice (in 'local,local:2')"},
      {"unix:a,local,unix:a", "--homes: 'unix:a': names the same homes twice (in 'unix:a,local,unix:a')"},
      {"local,", "--homes: '': is none of local, local:N and unix:PATH"},
  };
  for (const auto& [text, message] : cases) {
    const auto endpoints = ParseEndpoints("--homes", text);
    EXPECT_EQ(endpoints.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_EQ(endpoints.status().message(), message);
  }
  EXPECT_FALSE(ParseEndpoint("--homes", "unix:" + std::string(108, 'a')).ok());
  EXPECT_TRUE(ParseEndpoint("--homes", "unix:" + std::string(107, 'a')).ok());
}

TEST(EndpointTest, OtherHostsAreNotBuiltYet) {
  const auto endpoint = ParseEndpoint("--listen", "node7:4791");
  EXPECT_EQ(endpoint.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(endpoint.status().message(),
            "--listen: 'node7:4791': workers on other hosts (HOST:PORT) are not built yet; use unix:PATH or local");
}

}  // namespace
}  // namespace fastdecode
