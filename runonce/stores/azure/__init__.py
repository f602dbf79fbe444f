"""The stores on Azure Storage: tables, blob leases, queues and blobs.

Imported by the runtime alone, when it makes its stores; imports the protocols and the settings.
"""
