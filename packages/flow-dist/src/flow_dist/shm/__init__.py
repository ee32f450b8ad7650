"""Collectives over memory that the processes of one host share.

In: exchanges lowered to phases. Out: launches that copy and combine in mapped segments. This
package must not depend on the launcher or on MPI.
"""
