-- SPDX-License-Identifier: Apache-2.0
SELECT {{schema}}.retire($1)
