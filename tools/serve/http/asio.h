#ifndef FASTDECODE_TOOLS_SERVE_HTTP_ASIO_H_
#define FASTDECODE_TOOLS_SERVE_HTTP_ASIO_H_

// Boost.Asio under the names that are used here. Its version 1.18 uses std::exchange and does not include what has it.
#include <utility>
// (before Asio)
#include <boost/asio.hpp>
#include <boost/asio/ssl.hpp>

namespace fastdecode::serve {

namespace asio = boost::asio;
using boost::system::error_code;

}  // namespace fastdecode::serve

#endif  // FASTDECODE_TOOLS_SERVE_HTTP_ASIO_H_
