// What `fastdecode doctor` says of RDMA devices, their ports and the way there, on made-up hosts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/tools/doctor/fake_host.h"
#include "tools/doctor/doctor.h"

namespace fastdecode {
namespace {

using ::testing::AnyOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

TEST(DoctorFabricTest, InterfaceMtu) {
  FakeHost fake;
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"1500", "RDMA 1024, as eth0 has 1500"}, {"2200", "RDMA 2048"}, {"4191", "RDMA 2048"}, {"68", "RDMA 256"}};
  for (const auto& [mtu, found] : cases) {
    fake.Write("/sys/class/net/eth0/mtu", mtu);
    EXPECT_THAT(Find(fake.Examine(), "mlx5_0/1 MTU"),
                Is(CheckStatus::kWarning, found, "ip link set dev eth0 mtu 4200"));
  }
  fake.Write("/sys/class/net/eth0/mtu", "4192");
  EXPECT_THAT(Find(fake.Examine(), "mlx5_0/1 MTU"), IsOk("RDMA 4096"));
  fake.Remove("/sys/class/net/eth0");
  EXPECT_THAT(Find(fake.Examine(), "mlx5_0/1 MTU"), Is(CheckStatus::kUnknown, "not readable", "ibv_devinfo -d mlx5_0"));
}

TEST(DoctorFabricTest, APortThatIsDownIsAnErrorUnlessAnotherIsUp) {
  FakeHost fake;
  fake.Write(kPort + std::string("/state"), "1: DOWN");
  std::vector<Check> checks = fake.Examine();
  EXPECT_THAT(Find(checks, "mlx5_0/1"), Is(CheckStatus::kError, "DOWN, Ethernet", "ip link set dev eth0 up"));
  EXPECT_THAT(NamesOf(checks, CheckStatus::kError), ElementsAre("mlx5_0/1"));
  // Nothing is said of where a port's traffic would go that has none.
  EXPECT_THAT(checks, Each(Field(&Check::name, Not(HasSubstr("to NIC")))));
  const std::string second = "/sys/class/infiniband/mlx5_0/ports/2";
  fake.Write(second + "/state", "4: ACTIVE");
  fake.Write(second + "/link_layer", "InfiniBand");
  fake.Write(second + "/gids/0", "fe80:0000:0000:0000:ee0d:9aff:fe00:0002");
  checks = fake.Examine();
  EXPECT_EQ(Find(checks, "mlx5_0/1").status, CheckStatus::kWarning);
  EXPECT_THAT(Find(checks, "mlx5_0/2 GID"), IsOk("GID 0 fe80::ee0d:9aff:fe00:2"));
  EXPECT_THAT(NamesOf(checks, CheckStatus::kError), IsEmpty());
}

TEST(DoctorFabricTest, NoDevice) {
  FakeHost fake;
  fake.Remove("/sys/class/infiniband/mlx5_0");
  const std::vector<Check> checks = fake.Examine();
  EXPECT_THAT(Find(checks, "RDMA devices"), Is(CheckStatus::kError, "none", "type rxe"));
  EXPECT_THAT(NamesOf(checks, CheckStatus::kError), ElementsAre("RDMA devices"));
}

TEST(DoctorFabricTest, NoLibibverbs) {
  FakeHost fake;
  EXPECT_THAT(Find(fake.Examine(), "user verbs"), IsOk("libibverbs is there"));
  DoctorHost host = fake.host();
  host.verbs_missing = "libibverbs.so.1 could not be loaded: no such file";
  host.verbs_advice = "install libibverbs1";
  const std::vector<Check> checks = ExamineHost(host);
  EXPECT_THAT(Find(checks, "user verbs"),
              Is(CheckStatus::kError, "could not be loaded: no such file", "install libibverbs1"));
  EXPECT_THAT(NamesOf(checks, CheckStatus::kError), ElementsAre("user verbs"));
}

TEST(DoctorFabricTest, ADeviceWithoutItsFileInDev) {
  FakeHost fake;
  fake.Remove("/dev/infiniband/uverbs0");
  EXPECT_THAT(Find(fake.Examine(), "mlx5_0 access"),
              Is(CheckStatus::kError, "uverbs0: No such file", "--device=/dev/infiniband"));
}

TEST(DoctorFabricTest, ANicOnTheFarNode) {
  FakeHost fake;
  fake.Write(kNic + std::string("/numa_node"), "1");
  const std::vector<Check> checks = fake.Examine();
  EXPECT_THAT(Find(checks, "node 0 to NIC"), Is(CheckStatus::kWarning, "mlx5_0 on node 1, distance 21", "second NIC"));
  EXPECT_THAT(Find(checks, "node 1 to NIC"), IsOk("distance 10"));
  EXPECT_THAT(Find(checks, "GPU 0000:5e:00.0"),
              Is(CheckStatus::kWarning, "mlx5_0 on node 1, distance 21", "next to the GPU"));
}

TEST(DoctorFabricTest, NodesOfOneSocketAreNotFar) {
  FakeHost fake;
  fake.Write("/sys/devices/system/node/node1/distance", "12 10");
  EXPECT_THAT(Find(fake.Examine(), "node 1 to NIC"), IsOk("mlx5_0 on node 0, distance 12"));
}

TEST(DoctorFabricTest, ANicWhosePlaceTheKernelDoesNotKnow) {
  FakeHost fake;
  fake.Write(kNic + std::string("/numa_node"), "-1");
  EXPECT_THAT(Find(fake.Examine(), "node 0 to NIC"), Is(CheckStatus::kUnknown, "does not say", "lstopo"));
}

TEST(DoctorFabricTest, TheGidThatALinkTakes) {
  FakeHost fake;
  EXPECT_THAT(
      Find(fake.Examine(), "mlx5_0/1 GID"),
      IsOk("a link takes GID 3 10.77.0.1 (RoCE v2, eth0); there are also GID 0 fe80::ee0d:9aff:fe00:1 (IB/RoCE v1"));
  fake.Remove(kPort + std::string("/gids/3"));
  EXPECT_THAT(Find(fake.Examine(), "mlx5_0/1 GID"),
              Is(CheckStatus::kWarning, "a link takes GID 1 fe80::", "an address"));
  fake.SetGid(5, "2001:0db8:0000:0000:0000:0000:0000:0001", "RoCE v2");
  EXPECT_THAT(Find(fake.Examine(), "mlx5_0/1 GID"), IsOk("a link takes GID 5 2001:db8::1"));
  fake.Remove(kPort + std::string("/gids/5"));
  fake.Remove(kPort + std::string("/gids/1"));
  EXPECT_THAT(Find(fake.Examine(), "mlx5_0/1 GID"), Is(CheckStatus::kWarning, "a link takes GID 0 ", "RoCE v2"));
  fake.Remove(kPort + std::string("/gids"));
  EXPECT_THAT(Find(fake.Examine(), "mlx5_0/1 GID"), Is(CheckStatus::kError, "none", "ip addr"));
  EXPECT_THAT(Find(fake.Examine(), "mlx5_0/1 MTU"), IsOk("RDMA 4096, as eth0 has 9000"));
}

TEST(DoctorFabricTest, GidTenComesAfterGidNine) {
  FakeHost fake;
  fake.Remove(kPort + std::string("/gids"));
  fake.SetGid(10, "0000:0000:0000:0000:0000:ffff:0a4d:000a", "RoCE v2");
  fake.SetGid(9, "0000:0000:0000:0000:0000:ffff:0a4d:0009", "RoCE v2");
  EXPECT_THAT(Find(fake.Examine(), "mlx5_0/1 GID"), IsOk("a link takes GID 9 10.77.0.9"));
}

TEST(DoctorFabricTest, CountersThatTellTrouble) {
  FakeHost fake;
  fake.Write(kPort + std::string("/hw_counters/local_ack_timeout_err"), "12");
  fake.Write(kPort + std::string("/hw_counters/np_cnp_sent"), "3");
  const std::vector<Check> checks = fake.Examine();
  EXPECT_THAT(Find(checks, "mlx5_0/1 local_ack_timeout_err"), Is(CheckStatus::kWarning, "12 since", "drops"));
  EXPECT_THAT(Find(checks, "mlx5_0/1 np_cnp_sent"), Is(CheckStatus::kWarning, "congestion", "ports and switches"));
  EXPECT_THAT(checks, Each(Field(&Check::name, Not(EndsWith("counters")))));
}

TEST(DoctorFabricTest, Ecn) {
  FakeHost fake;
  fake.Write("/sys/class/net/eth0/ecn/roce_rp/enable/3", "0");
  EXPECT_THAT(Find(fake.Examine(), "mlx5_0/1 ECN"), Is(CheckStatus::kWarning, "as sender: off", "roce_rp"));
  fake.Remove("/sys/class/net/eth0/ecn");
  EXPECT_THAT(Find(fake.Examine(), "mlx5_0/1 ECN"), Is(CheckStatus::kUnknown, "not readable", "vendor"));
}

TEST(DoctorFabricTest, SoftRoce) {
  FakeHost fake;
  fake.Remove("/sys/class/infiniband/mlx5_0/device");
  fake.Write("/sys/class/infiniband/mlx5_0/parent", "eth0");
  const std::vector<Check> checks = fake.Examine();
  EXPECT_THAT(Find(checks, "mlx5_0"), Is(CheckStatus::kWarning, "over eth0, without an RDMA NIC", "tests"));
  EXPECT_THAT(checks, Each(Field(&Check::name, Not(EndsWith("PFC")))));
  EXPECT_THAT(checks, Each(Field(&Check::name, Not(HasSubstr("to NIC")))));
}

TEST(DoctorFabricTest, ADeviceOfAnotherTransportIsNoneForLinks) {
  const std::vector<std::pair<std::string, std::string>> cases = {{"4: RNIC", "speaks iWARP"},
                                                                  {"7: unspecified", "speaks a transport of its own"}};
  for (const auto& [type, found] : cases) {
    FakeHost fake;
    fake.Write("/sys/class/infiniband/mlx5_0/node_type", type);
    std::vector<Check> checks = fake.Examine();
    EXPECT_THAT(Find(checks, "mlx5_0"), Is(CheckStatus::kError, found, "RoCE"));
    EXPECT_THAT(NamesOf(checks, CheckStatus::kError), ElementsAre("mlx5_0"));
    EXPECT_THAT(checks, Each(Field(&Check::name, Not(AnyOf(HasSubstr("GID"), HasSubstr("to NIC"))))));
    const std::string other = "/sys/class/infiniband/mlx5_1";
    fake.Write(other + "/node_type", "1: CA");
    fake.Write(other + "/ports/1/state", "4: ACTIVE");
    checks = fake.Examine();
    EXPECT_EQ(Find(checks, "mlx5_0").status, CheckStatus::kWarning) << "another one is there";
  }
}

TEST(DoctorFabricTest, IommuThatTranslates) {
  FakeHost fake;
  fake.Write("/proc/cmdline", "root=/dev/sda1 iommu=pt-not quiet");
  EXPECT_THAT(Find(fake.Examine(), "IOMMU"), IsOk("identity"));
  fake.Write("/sys/kernel/iommu_groups/1/type", "DMA-FQ");
  EXPECT_THAT(Find(fake.Examine(), "IOMMU"),
              Is(CheckStatus::kWarning, "2 groups of type DMA-FQ, identity", "iommu=pt"));
  fake.Remove("/sys/kernel/iommu_groups");
  EXPECT_THAT(Find(fake.Examine(), "IOMMU"), IsOk("off"));
}

}  // namespace
}  // namespace fastdecode
