# Errors about a call's arguments name the function: Cython writes the name that a function has in its source, and the functions of operators are all
# made by one. What is wrong is known only once a call has failed, so a good call pays for one more jump. Each module that cimports this has its copy.
cdef extern from *:
    """
    #include <stddef.h>

    static vectorcallfunc om_plain_call; /* Cython's own: the same for every function of a module that takes its arguments so */

    static void om_name_error(PyObject *function) {
        PyObject *type, *value, *traceback, *text = NULL, *name = NULL, *form = NULL, *rest = NULL;
        PyErr_Fetch(&type, &value, &traceback);
        PyErr_NormalizeException(&type, &value, &traceback);
        text = PyObject_Str(value);
        if (text && PyUnicode_Check(text) && PyUnicode_GET_LENGTH(text) > 7) {
            rest = PyUnicode_Substring(text, 0, 7);
            if (rest && PyUnicode_CompareWithASCIIString(rest, "call() ") == 0) {
                Py_CLEAR(rest);
                rest = PyUnicode_Substring(text, 7, PyUnicode_GET_LENGTH(text));
                name = PyObject_GetAttrString(function, "__name__");
                form = PyObject_GetAttrString(function, "__signature__");
                if (rest && name && form) {
                    PyErr_Format(PyExc_TypeError, "%U: %U; write %U%S", name, rest, name, form);
                    Py_CLEAR(type);
                }
            }
        }
        Py_XDECREF(text), Py_XDECREF(rest), Py_XDECREF(name), Py_XDECREF(form);
        if (type) {
            PyErr_Restore(type, value, traceback);
        } else {
            Py_XDECREF(value), Py_XDECREF(traceback);
        }
    }

    static PyObject *om_named_call(PyObject *function, PyObject *const *args, size_t nargsf, PyObject *kwnames) {
        PyObject *result = om_plain_call(function, args, nargsf, kwnames);
        if (!result && PyErr_ExceptionMatches(PyExc_TypeError)) {
            om_name_error(function);
        }
        return result;
    }

    /* A function that is called in another way than expected keeps its errors as they are; a test sees that none does. */
    static void om_name_errors(PyObject *function) {
        if (PyType_HasFeature(Py_TYPE(function), Py_TPFLAGS_HAVE_VECTORCALL)
            && Py_TYPE(function)->tp_vectorcall_offset == (Py_ssize_t)offsetof(PyCFunctionObject, vectorcall)) {
            PyCFunctionObject *f = (PyCFunctionObject *)function;
            if (!om_plain_call) {
                om_plain_call = f->vectorcall;
            }
            if (f->vectorcall == om_plain_call) {
                f->vectorcall = om_named_call;
            }
        }
    }
    """
    void name_errors "om_name_errors"(object function)
