// How a kernel, or an instance of a kernel template, is made callable from Python: compiler.py appends
// functions sim_enter_0, sim_parameters_0, ... that use these templates.
#pragma once
#include <stddef.h>

#include <type_traits>
#include <utility>

namespace sim {

struct Parameter {
    char kind;  // 'p'ointer, 'i'nteger, 'f'loat, 's'truct; 0 ends a list
    unsigned bytes;
};

template <class T> constexpr Parameter parameter() {
    return {std::is_pointer<T>::value                              ? 'p'
            : std::is_integral<T>::value || std::is_enum<T>::value ? 'i'
            : std::is_floating_point<T>::value                     ? 'f'
                                                                   : 's',
            unsigned(sizeof(T))};
}

template <class... P> const Parameter *parameters(void (*)(P...)) {
    static const Parameter list[] = {parameter<P>()..., {0, 0}};
    return list;
}

// Every thread gets its own copy of the arguments, as on the card.
template <class... P, size_t... I> inline void call(void (*kernel)(P...), void **arguments, std::index_sequence<I...>) {
    kernel(*static_cast<std::remove_cv_t<P> *>(arguments[I])...);
}
template <class... P> inline void call(void (*kernel)(P...), void **arguments) {
    call(kernel, arguments, std::index_sequence_for<P...>());
}

}  // namespace sim
