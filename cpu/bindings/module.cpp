// The Python module polygpu._cpu. Its caller, _backends/cpu.py, checks all arguments.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <exception>
#include <string>

#include "available.hpp"
#include "basis.hpp"
#include "buffer.hpp"
#include "clock.hpp"
#include "compose.hpp"
#include "dispatch.hpp"
#include "fourier.hpp"
#include "gil.hpp"
#include "lattice.hpp"
#include "launches.hpp"
#include "lists.hpp"
#include "multiply.hpp"
#include "pool.hpp"
#include "quotient.hpp"
#include "replay.hpp"
#include "results.hpp"
#include "rns.hpp"
#include "sampling.hpp"
#include "tables.hpp"
#include "threads.hpp"
#include "torus.hpp"
#include "transform.hpp"

namespace nb = nanobind;

namespace pg {
namespace {

// std::bad_alloc becomes polygpu.errors.OutOfHostMemory in Python.
void translate_bad_alloc(const std::exception_ptr &failure, void *) {
    try {
        std::rethrow_exception(failure);
    } catch (const std::bad_alloc &error) {
        const auto *sized = dynamic_cast<const OutOfMemory *>(&error);
        const std::string need =
            sized ? std::to_string((sized->bytes >> 20) + 1) + " MiB of scratch memory" : "more memory";
        const nb::object type = nb::module_::import_("polygpu.errors").attr("OutOfHostMemory");
        PyErr_SetString(type.ptr(), ("The call needs " + need +
                                     ", and the system has none left. A limit of addresses (ulimit -v) counts too. "
                                     "Use smaller batches or fewer threads.")
                                        .c_str());
    }
}

}  // namespace
}  // namespace pg

NB_MODULE(_cpu, module) {
    using namespace pg;
    nb::register_exception_translator(translate_bad_alloc);
    static const Python python;
    set_caller(python);
    module.attr("RESULTS") = make_results_handler();
    nb::set_leak_warnings(false);  // plans in Python's caches live until the interpreter ends
    module.attr("OPS") = nb::cast(std::vector<std::string>(std::begin(OPS), std::end(OPS)));
    module.attr("SHAPES") = nb::cast(std::vector<std::string>(std::begin(SHAPES), std::end(SHAPES)));
    nb::enum_<Quotient> quotients(module, "Quotient");
    for (const auto &each : QUOTIENTS) quotients.value(each.name, each.quotient);
    nb::class_<Basis>(module, "Basis")
        .def(nb::init<const Numbers &, int>(), nb::arg("moduli"), nb::arg("storage_bits"))
        .def("pointwise", &Basis::pointwise, nb::arg("op"), nb::arg("a"), nb::arg("b").none(), nb::arg("c").none(),
             nb::arg("out"))
        .def(
            "combine",
            [](const Basis &basis, const Array &factors, const Array &constant, size_t step, const Out &out,
               const nb::args &operands) {
                const OpenArrays<StridedArray> opened(operands, "combine: operands must be arrays");
                basis.combine(opened.arrays(), factors, constant, step, out);
            },
            nb::arg("factors"), nb::arg("constant").none(), nb::arg("step"), nb::arg("out"), nb::arg("operands"))
        .def("permute", &Basis::permute, nb::arg("x"), nb::arg("index"), nb::arg("out"))
        .def("mul_monomial", &Basis::mul_monomial, nb::arg("x"), nb::arg("exponents"), nb::arg("quotient"),
             nb::arg("out"))
        .def("scale_by_powers", &Basis::scale_by_powers, nb::arg("x"), nb::arg("first"), nb::arg("step"),
             nb::arg("out"))
        .def("reduce_integers", &Basis::reduce_integers, nb::arg("x"), nb::arg("out"))
        .def("reduce_large_integers", &Basis::reduce_large_integers, nb::arg("x"), nb::arg("out"))
        .def("reduce_words", &reduce_words, nb::arg("words"), nb::arg("limb"), nb::arg("first"), nb::arg("out"))
        .def("matmul", &Basis::matmul, nb::arg("a"), nb::arg("b"), nb::arg("out"))
        .def("matmul_bytes", &Basis::matmul_bytes, nb::arg("a"), nb::arg("is_signed"), nb::arg("b"), nb::arg("out"))
        .def("matmul_points", &Basis::matmul_points, nb::keep_alive<0, 1>(), nb::arg("a"), nb::arg("b"), nb::arg("out"))
        .def("invert", &Basis::invert, nb::arg("x"), nb::arg("quotient"), nb::arg("out"), nb::arg("degrees"))
        .def("find_wrong_product", &Basis::find_wrong_product, nb::arg("a"), nb::arg("b"), nb::arg("c"),
             nb::arg("points"), nb::arg("quotient"))
        .def("ns_by_transform", &Basis::ns_by_transform, nb::arg("points"), nb::arg("leaf_size"))
        .def("ns_by_fft", &Basis::ns_by_fft, nb::arg("reals"))
        .def("ns_by_primes", &Basis::ns_by_primes, nb::arg("points"), nb::arg("primes"));
    nb::class_<PointsProduct>(module, "PointsProduct")
        .def("run", nb::overload_cast<const Array &, const Array &, const Out &>(&PointsProduct::run, nb::const_),
             nb::arg("a"), nb::arg("b"), nb::arg("out"));
    nb::class_<Residues>(module, "Residues")
        .def(nb::init<const std::vector<u64> &, const std::vector<size_t> &, size_t>(), nb::arg("moduli"),
             nb::arg("at"), nb::arg("total"));
    nb::class_<Quotients>(module, "Quotients")
        .def(nb::init<const std::string &, const std::vector<u64> &, const Numbers &>(), nb::arg("way"),
             nb::arg("moduli"), nb::arg("words"));
    nb::class_<Conversion>(module, "Conversion")
        .def(nb::init<Residues, std::vector<u64>, Quotients, Residues, bool, const Transform *, Residues,
                      const Numbers &>(),
             nb::keep_alive<1, 7>(), nb::arg("source"), nb::arg("inverses"), nb::arg("quotients"), nb::arg("target"),
             nb::arg("accumulates"), nb::arg("transform").none(), nb::arg("own"), nb::arg("matrix"))
        .def("scale", &Conversion::scale, nb::arg("rows"), nb::arg("remainders"), nb::arg("fractions"))
        .def("run", &Conversion::run, nb::arg("x").none(), nb::arg("own").none(), nb::arg("out"));
    nb::class_<Sampler>(module, "Sampler")
        .def(nb::init<int, size_t, u64, u64, const Numbers &, const Numbers &>(), nb::arg("shape"), nb::arg("bytes"),
             nb::arg("parameter"), nb::arg("bound"), nb::arg("weights"), nb::arg("thresholds"))
        .def("draw", &Sampler::draw, nb::arg("basis"), nb::arg("stream"), nb::arg("first"), nb::arg("count"),
             nb::arg("out"));
    nb::class_<Composition>(module, "Composition")
        .def(nb::init<const Basis &, size_t, const Numbers &, const Numbers &, const Numbers &, const Numbers &,
                      const Numbers &>(),
             nb::keep_alive<1, 2>(), nb::arg("basis"), nb::arg("words"), nb::arg("inverse"), nb::arg("terms"),
             nb::arg("modulus"), nb::arg("prefix_inverse"), nb::arg("bounds"))
        .def("to_words", &Composition::to_words, nb::arg("x"), nb::arg("centered"), nb::arg("out"))
        .def("to_int64", &Composition::to_int64, nb::arg("x"), nb::arg("centered"), nb::arg("out"))
        .def("to_float64", &Composition::to_float64, nb::arg("x"), nb::arg("centered"), nb::arg("out"))
        .def("norm", &Composition::norm, nb::arg("x"), nb::arg("p"), nb::arg("out"));
    nb::class_<PrimeTables>(module, "PrimeTables")
        .def(nb::init<u64, const Lasting<Array> &, const Lasting<Array> &>(), nb::arg("modulus"), nb::arg("forward"),
             nb::arg("inverse"));
    // tables: a tuple, which keeps its entries alive
    nb::class_<Transform>(module, "Transform")
        .def(
            "__init__",
            [](Transform *self, const Basis &basis, size_t degree, size_t leaf_size, size_t block, Quotient quotient,
               const nb::tuple &tables) {
                new (self) Transform(basis, degree, leaf_size, block, quotient,
                                     nb::cast<std::vector<const PrimeTables *>>(tables));
            },
            nb::keep_alive<1, 2>(), nb::keep_alive<1, 7>(), nb::arg("basis"), nb::arg("degree"), nb::arg("leaf_size"),
            nb::arg("block"), nb::arg("quotient"), nb::arg("tables"))
        .def("ntt", &Transform::ntt, nb::arg("x"), nb::arg("out"), nb::arg("first") = 0)
        .def("intt", &Transform::intt, nb::arg("x"), nb::arg("out"), nb::arg("first") = 0)
        .def("multiply", &Transform::multiply, nb::arg("a"), nb::arg("b"), nb::arg("out"))
        .def("multiply_eval", &Transform::multiply_eval, nb::arg("a"), nb::arg("b"), nb::arg("out"));
    nb::class_<DigitProduct>(module, "DigitProduct")
        .def(nb::init<const Transform &, size_t, std::vector<size_t>, std::vector<size_t>, size_t, std::vector<size_t>,
                      size_t, bool>(),
             nb::keep_alive<1, 2>(), nb::arg("transform"), nb::arg("digits"), nb::arg("own_digits"),
             nb::arg("own_rows"), nb::arg("own_total"), nb::arg("key_rows"), nb::arg("key_total"),
             nb::arg("transformed"))
        .def("run", &DigitProduct::run, nb::arg("digits"), nb::arg("own").none(), nb::arg("key"), nb::arg("out"));
    nb::class_<Order>(module, "Order").def(nb::init<const Numbers &>(), nb::arg("index"));
    // orders: a tuple, which keeps its entries alive
    nb::class_<RotatedSums>(module, "RotatedSums")
        .def(
            "__init__",
            [](RotatedSums *self, const Transform &transform, size_t digits, const nb::tuple &orders,
               const std::vector<std::vector<size_t>> &key_rows, const std::vector<size_t> &key_totals,
               std::vector<u64> factors, std::vector<size_t> more_rows, size_t more_total, bool turned, bool split,
               std::vector<std::vector<i64>> places) {
                require(key_rows.size() == orders.size() && key_totals.size() == orders.size(),
                        "RotatedSums: an order and a key for each term");
                std::vector<RotatedSums::Term> terms;
                for (size_t i = 0; i < orders.size(); ++i)
                    terms.push_back({&nb::cast<const Order &>(orders[i]), key_rows[i], key_totals[i]});
                new (self) RotatedSums(transform, digits, std::move(terms), std::move(factors), std::move(more_rows),
                                       more_total, turned, split, std::move(places));
            },
            nb::keep_alive<1, 2>(), nb::keep_alive<1, 4>(), nb::arg("transform"), nb::arg("digits"), nb::arg("orders"),
            nb::arg("key_rows"), nb::arg("key_totals"), nb::arg("factors"), nb::arg("more_rows"), nb::arg("more_total"),
            nb::arg("turned"), nb::arg("split"), nb::arg("places"))
        .def(
            "run",
            [](const RotatedSums &sums, const Array &digits, const Array &more, const Array &weights, const Out &out,
               const nb::args &keys) {
                const OpenArrays<Array> opened(keys, "RotatedSums: keys must be arrays");
                sums.run(digits, more, weights, out, opened.arrays());
            },
            nb::arg("digits").none(), nb::arg("more"), nb::arg("weights").none(), nb::arg("out"), nb::arg("keys"));
    nb::class_<GadgetProduct>(module, "GadgetProduct")
        .def(nb::init<const Basis &, const Transform *, const FftProduct *, unsigned, unsigned>(),
             nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>(), nb::keep_alive<1, 4>(), nb::arg("basis"),
             nb::arg("transform").none(), nb::arg("product").none(), nb::arg("bits"), nb::arg("levels"))
        .def("decompose", &GadgetProduct::decompose, nb::arg("x"), nb::arg("out"))
        .def("prepare", &GadgetProduct::prepare, nb::arg("x"), nb::arg("out"))
        .def("multiply", &GadgetProduct::multiply, nb::arg("ggsw"), nb::arg("c"), nb::arg("out"))
        .def("rotate", &GadgetProduct::rotate, nb::arg("ggsws"), nb::arg("c"), nb::arg("exponents"), nb::arg("out"));
    nb::class_<TorusProduct>(module, "TorusProduct")
        .def(nb::init<unsigned, unsigned, unsigned, const Lasting<Numbers> &, const Numbers &>(),
             nb::arg("modulus_bits"), nb::arg("bits"), nb::arg("levels"), nb::arg("twiddles"), nb::arg("roots"))
        .def("arrange", &TorusProduct::arrange, nb::arg("leaves"), nb::arg("out"))
        .def("multiply", &TorusProduct::multiply, nb::arg("ggsw"), nb::arg("c"), nb::arg("out"))
        .def("rotate", &TorusProduct::rotate, nb::arg("ggsws"), nb::arg("c"), nb::arg("exponents"), nb::arg("out"))
        .def("rotate_by_groups", &TorusProduct::rotate_by_groups, nb::arg("keys"), nb::arg("c"), nb::arg("exponents"),
             nb::arg("out"));
    nb::class_<Auxiliary>(module, "Auxiliary")
        .def(nb::init<const Basis &, const Transform &, size_t, Quotient>(), nb::keep_alive<1, 2>(),
             nb::keep_alive<1, 3>(),
             nb::call_guard<GilReleased>(),  // the constructor is slow for many moduli
             nb::arg("basis"), nb::arg("transform"), nb::arg("degree"), nb::arg("quotient"))
        .def("multiply", &Auxiliary::multiply, nb::arg("a"), nb::arg("b"), nb::arg("out"));
    nb::class_<FftProduct>(module, "FftProduct")
        .def(nb::init<const Basis &, size_t, size_t, Quotient, unsigned, unsigned, unsigned, const Lasting<Numbers> &,
                      unsigned, unsigned>(),
             nb::keep_alive<1, 2>(), nb::arg("basis"), nb::arg("degree"), nb::arg("length"), nb::arg("quotient"),
             nb::arg("digits"), nb::arg("width"), nb::arg("sums"), nb::arg("table"), nb::arg("terms") = 0,
             nb::arg("bits") = 0)
        .def("multiply", &FftProduct::multiply, nb::arg("a"), nb::arg("b"), nb::arg("out"));
    nb::exception<DriverError> driver_error(module, "DriverError", PyExc_RuntimeError);
    nb::exception<NoContext>(module, "NoContext", driver_error.ptr());
    make_names();
    nb::class_<Launches>(module, "Launches")
        .def("__init__", &make_launches, nb::arg("driver"), nb::arg("launches"))
        .def("__call__", &launch, nb::arg("stream"), nb::arg("operands"))
        .def("on", &launch_on, nb::arg("stream"), nb::arg("operands"), nb::arg("result"), nb::arg("room"));
    nb::class_<Replay>(module, "Replay")
        .def(nb::init<const nb::tuple &, nb::object, const nb::list &, const nb::list &, const nb::list &,
                      const nb::list &, size_t, size_t, nb::object, nb::object>(),
             nb::arg("shape"), nb::arg("dtype"), nb::arg("made"), nb::arg("fixed"), nb::arg("views"), nb::arg("steps"),
             nb::arg("operands"), nb::arg("limit"), nb::arg("unusual"), nb::arg("serves"))
        .def("__call__", &Replay::operator(), nb::arg("operands"), nb::arg("out").none());
    module.def("fill_twiddles", &fill_twiddle_tables, nb::call_guard<GilReleased>(), nb::arg("q"), nb::arg("root"),
               nb::arg("quotient"), nb::arg("forward"), nb::arg("inverse"));
    module.def("smallest_generator", &smallest_generator, nb::arg("q"), nb::arg("root"), nb::arg("order"),
               nb::call_guard<GilReleased>());
    module.def("fft", &fft, nb::arg("x"), nb::arg("out"), nb::arg("inverse"));
    module.def("convolve64", &convolve64, nb::arg("a"), nb::arg("b"), nb::arg("out"));
    module.def("integers_of_list", &integers_of_list, nb::arg("x"));
    module.def("empty", &empty, nb::arg("shape"), nb::arg("dtype"), nb::arg("zero"), nb::arg("limit"));
    module.def("set_memory_handler", &set_memory_handler, nb::arg("handler"));
    module.def("pool_kept", &pool_kept);
    module.def("pool_release", &pool_release);
    module.def(
        "pool_set_bounds",
        [](size_t bytes, double idle) { pool_set_bounds(bytes, std::chrono::milliseconds((int64_t)(1000 * idle))); },
        nb::arg("bytes"), nb::arg("idle") = 10.0);
    module.def("available_memory", &available_memory, nb::arg("proc") = "/proc", nb::arg("cgroup") = "/sys/fs/cgroup");
    module.def("all_isas", &all_isas);
    module.def("supported_isas", &supported_isas);
    module.def("most_matrix_degree", [] { return costs().matrix_degree; });
    module.def("isa", &isa_in_use);
    module.def("set_isa", &set_isa, nb::arg("name"));
    module.def("set_num_threads", &set_num_threads, nb::arg("count"));
    module.def("num_threads", &num_threads);
    module.def("clock_ghz", &clock_ghz, nb::call_guard<GilReleased>());
}
