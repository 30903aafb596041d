#include "rdma/endpoint.h"

#include <gtest/gtest.h>

namespace fastdecode {
namespace {

TEST(EndpointTest, ParsesAList) {
  const auto endpoints = ParseEndpoints("--homes", "local:2,gpu,unix:/run/a.sock,unix:b");
  ASSERT_TRUE(endpoints.ok()) << endpoints.status();
  const std::vector<Endpoint> expected = {{Endpoint::Kind::kLocal, 2, ""},
                                          {Endpoint::Kind::kGpu},
                                          {Endpoint::Kind::kUnix, 0, "/run/a.sock"},
                                          {Endpoint::Kind::kUnix, 0, "b"}};
  EXPECT_EQ(*endpoints, expected);
  EXPECT_EQ(*ParseEndpoint("--homes", "local"), Endpoint());
}

TEST(EndpointTest, ErrorsNameOptionAndValue) {
  const std::pair<std::string, std::string> cases[] = {
      {"", "--homes: '': is none of gpu, local, local:N, unix:PATH and HOST:PORT"},
      {"locale",
       "--homes: 'locale': is none of gpu, local, local:N, unix:PATH and HOST:PORT; a host has a port behind it: "
       "locale:7471"},
      {"local:0", "--homes: 'local:0': local:N takes a number of homes from 1 to 64"},
      {"local:65", "--homes: 'local:65': local:N takes a number of homes from 1 to 64"},
      {"local:x", "--homes: 'local:x': local:N takes a number of homes from 1 to 64"},
      {"unix:", "--homes: 'unix:': unix:: the path of a socket has 1 to 107 bytes, this one has 0"},
      {"local,local:2", "--homes: 'local:2': names the same homes twice (in 'local,local:2')"},
      {"gpu,local,gpu", "--homes: 'gpu': names the same homes twice (in 'gpu,local,gpu')"},
      {"unix:a,local,unix:a", "--homes: 'unix:a': names the same homes twice (in 'unix:a,local,unix:a')"},
      {"local,", "--homes: '': is none of gpu, local, local:N, unix:PATH and HOST:PORT"},
  };
  for (const auto& [text, message] : cases) {
    const auto endpoints = ParseEndpoints("--homes", text);
    EXPECT_EQ(endpoints.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_EQ(endpoints.status().message(), message);
  }
  EXPECT_FALSE(ParseEndpoint("--homes", "unix:" + std::string(108, 'a')).ok());
  EXPECT_TRUE(ParseEndpoint("--homes", "unix:" + std::string(107, 'a')).ok());
}

TEST(EndpointTest, ParsesOtherHosts) {
  const auto endpoints = ParseEndpoints("--homes", "node7:4791,10.0.0.2:1,[fe80::1%eth0]:65535,local,node7:4792");
  ASSERT_TRUE(endpoints.ok()) << endpoints.status();
  const std::vector<Endpoint> expected = {{Endpoint::Kind::kFabric, 0, "", "node7", 4791},
                                          {Endpoint::Kind::kFabric, 0, "", "10.0.0.2", 1},
                                          {Endpoint::Kind::kFabric, 0, "", "fe80::1%eth0", 65535},
                                          {},
                                          {Endpoint::Kind::kFabric, 0, "", "node7", 4792}};
  EXPECT_EQ(*endpoints, expected);
}

TEST(EndpointTest, OtherHostsThatCannotBe) {
  const std::string brackets = "an IPv6 address goes in brackets: [::1]:4711";
  const std::string host = "HOST:PORT takes a host name, an IPv4 address or an IPv6 address in brackets";
  const std::string port = "HOST:PORT takes a port from 1 to 65535";
  const std::pair<std::string, std::string> cases[] = {
      {"::1:4711", brackets},
      {"fe80::1", brackets},
      {":4711", host},
      {"[]:4711", host},
      {"[::1:4711", brackets},
      {"a b:1", host},
      {"[a/b]:1", host},
      {"node7:", port},
      {"node7:0", port},
      {"node7:65536", port},
      {"node7:x", port},
      {"node7:-1", port},
      {"[::1]:", port},
      {"uni:path", port},
      {"node7:1 2", port},
      {"node7:4294967297", port},
      {"[::1]", "an address has a port behind it: [::1]:7471"},
  };
  for (const auto& [text, why] : cases) {
    EXPECT_EQ(ParseEndpoint("--listen", text).status().message(), "--listen: '" + text + "': " + why);
  }
  EXPECT_EQ(ParseEndpoints("--homes", "a:1,b:1,a:1").status().message(),
            "--homes: 'a:1': names the same homes twice (in 'a:1,b:1,a:1')");
}

TEST(EndpointTest, SaysWhatWasProbablyMeant) {
  const std::pair<std::string, std::string> cases[] = {
      {"/run/w.sock", "; a socket's path stands behind unix:, as in unix:/run/w.sock"},
      {"w.sock", "; a socket's path stands behind unix:, as in unix:w.sock"},
      {"unix://w.sock", "; a socket's path stands behind unix:, as in unix:w.sock"},
      {"tcp://node7:1", "; there is no tcp:// before a host: node7:1"},
      {"rdma://node7/x", "; there is no rdma:// before a host: node7:7471"},
      {"7471", "; a port stands behind a host: HOST:7471"},
      {"CUDA", "; give gpu"},
      {"gpu:1", "; give gpu, and --gpu N for which one"},
  };
  for (const auto& [text, hint] : cases) {
    EXPECT_EQ(ParseEndpoint("--homes", text).status().message(),
              "--homes: '" + text + "': is none of gpu, local, local:N, unix:PATH and HOST:PORT" + hint);
  }
  EXPECT_EQ(ParseEndpoint("--homes", "unix:///run/w.sock")->path, "///run/w.sock");
}

TEST(EndpointTest, NobodyListensForHomesOfThisProcess) {
  for (const std::string text : {"gpu", "local", "local:2"}) {
    EXPECT_EQ(ParseEndpoint("--listen", text, EndpointUse::kListen).status().message(),
              "--listen: '" + text + "': is neither unix:PATH nor HOST:PORT; engines in other processes connect there");
  }
  EXPECT_EQ(ParseEndpoint("--listen", "7471", EndpointUse::kListen).status().message(),
            "--listen: '7471': is neither unix:PATH nor HOST:PORT; a port stands behind a host: 0.0.0.0:7471");
  EXPECT_EQ(ParseEndpoint("--listen", "node7:4791", EndpointUse::kListen)->port, 4791);
  EXPECT_EQ(ParseEndpoint("--listen", "unix:w", EndpointUse::kListen)->path, "w");
  EXPECT_EQ(ParseEndpoint("--peer", "moon", EndpointUse::kPeer).status().message(),
            "--peer: 'moon': is none of local, unix:PATH and HOST:PORT; a host has a port behind it: moon:7471");
}

}  // namespace
}  // namespace fastdecode
